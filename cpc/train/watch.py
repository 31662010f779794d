"""The watchdog of a process, which reports other processes that are missing, end or hang.

If a process ends, JAX aborts the others in C++, with pages of stack trace or after minutes of
silence, and it never notices a process that hangs. So each process starts a watchdog, a small
program that needs only the standard library. Before JAX starts, the watchdog of process 0 waits
until all others have connected to it. From then on, the watchdogs monitor these connections. They
exchange the following lines with each other and, through pipes, with the watched processes:

    here ID NUMBER     process ID is present, and expects NUMBER processes
    go ID              the answer when all processes are present
    .                  the watchdog is alive
    at STEP LONGEST    the process trains (see `Heartbeat`); "busy" if it does something else
    waits IDENTITY     the process waits for the others; IDENTITY is a JSON object
    all                all processes wait and have the same identity
    lost SENTENCE      all processes must end
    bye                the process ends normally

Connections of port scans, browsers and launches of another size are refused, but the network of the
cluster is trusted.

    python watch.py HOST PORT ID NUMBER LOG JOIN_SECONDS SILENCE_SECONDS HANG_SECONDS

LOG is the file that receives the C++ messages of the process.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

#: Seconds between two heartbeats of a program.
HEARTBEAT_SECONDS = 1.0
#: A process counts as hung after this many times the longest step so far.
FACTOR = 10
#: Factor by which that limit is longer for a busy process.
BUSY_FACTOR = 12
#: Limits on the number of differences in an error message and on the characters of each value.
MAX_DIFFERENCES, MAX_VALUE = 3, 60
#: Maximum length of a line, in bytes.
MAX_LINE = 2**24
#: The event that follows the last line of a peer.
GONE = ""
RESTART = "then start all of them again, and they resume from the last checkpoint"


#: Lines from all peers in the order in which they were received.
Events: TypeAlias = "queue.SimpleQueue[tuple[Peer, str]]"


class Heartbeat(NamedTuple):
    """The last state that a process reported."""

    step: int  # the last step for which the process has a batch
    is_busy: bool  # starting, evaluating, saving, or done with training
    longest: float  # the longest time at a step, in seconds
    changed: float  # time when `step` or `is_busy` last changed
    heard: float  # time of the last report


class Ended(Exception):
    """Raised to end `watch` with a result, or to report why it cannot start."""


class Peer:
    """A watchdog, or the watched process if there is no connection. A thread reads its lines."""

    def __init__(self, events: Events, connection: socket.socket | None = None, index: int = 0):
        self.connection, self.index = connection, index
        self.heard = time.monotonic()
        self.identity = ""  # JSON, set only while the peer waits
        self.heartbeat = Heartbeat(0, True, 0.0, self.heard, self.heard)
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: Events) -> None:
        file = self.connection.makefile("rb") if self.connection else sys.stdin.buffer
        with contextlib.suppress(OSError), file, self.connection or contextlib.nullcontext():
            while line := file.readline(MAX_LINE):
                self.heard = time.monotonic()
                events.put((self, line.decode("utf-8", "replace").strip()))
        events.put((self, GONE))

    def send(self, line: str) -> None:
        """Send a line. The reading thread notices a lost connection."""
        with contextlib.suppress(OSError):
            os.write(self.connection.fileno() if self.connection else 1, f"{line}\n".encode())

    def close(self) -> None:
        """Close the connection, which ends the thread."""
        if self.connection:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


def find_hung(
    heartbeats: Mapping[int, Heartbeat], number: int, min_seconds: float, now: float
) -> str:
    """Return a sentence that names the processes that hang, or "" if none hangs.

    The time limit is `min_seconds` or, if longer, `FACTOR` times the longest time that any process
    has spent at a step. A process that sends no heartbeat for this time counts as hung. If
    all processes send heartbeats but none advances for this time, the process that is furthest
    behind counts as hung, because the others have started a step that needs it. If that process is
    busy, the limit is `BUSY_FACTOR` times as long. If all are busy, no process waits for another.
    """
    beats = heartbeats.values()
    longest = max(beat.longest for beat in beats)
    limit = max(min_seconds, FACTOR * longest)
    stopped = [index for index, beat in heartbeats.items() if now - beat.heard > limit]
    if stopped:
        step = max(heartbeats[index].step for index in stopped)
        how = f"gave no sign of life for {limit:.0f} s, since step {step}: stopped, or stuck"
        return describe_end(stopped, number, how)
    step, is_busy = hindmost = min(beat[:2] for beat in beats)
    limit *= BUSY_FACTOR if is_busy else 1
    is_unclear = any(now - beat.heard > 5 * HEARTBEAT_SECONDS for beat in beats)
    has_moved = any(now - beat.changed <= limit for beat in beats)
    if is_unclear or has_moved or all(beat.is_busy for beat in beats):
        return ""
    how = f"stayed at step {step} for {limit:.0f} s (the longest wait before: {longest:.1f} s), and"
    behind = [index for index, beat in heartbeats.items() if beat[:2] == hindmost]
    if len(behind) < len(beats):
        ahead = max(beat.step for beat in beats)
        return describe_end(behind, number, f"{how} others wait at step {ahead}")
    unknown = "it is not known which of them hangs: it may be a device or the network"
    return f"all processes {how} {unknown}; all end: look at the output of each, {RESTART}"


def describe_end(indices: list[int], number: int, how: str) -> str:
    """Return an error message that names the processes whose failure ends all processes."""
    names = name_processes(indices)
    return f"{names} of {number} {how}; all end: look at the output of {names}, {RESTART}"


def name_processes(indices: list[int]) -> str:
    """Return "process 1" or "processes 1, 2"."""
    return f"process{'es' * (len(indices) > 1)} {', '.join(map(str, indices))}"


def describe_difference(identities: Mapping[int, Mapping[str, Any]]) -> str:
    """Describe the first process whose identity differs from process 0's, or return ""."""
    first = identities[0]

    def show(identity, name):
        return json.dumps(identity[name])[:MAX_VALUE] if name in identity else "absent"

    for index, own in sorted(identities.items()):
        names = sorted(name for name in {*first, *own} if first.get(name) != own.get(name))
        if names:
            shown = "; ".join(
                f"{name}: {show(first, name)} there, {show(own, name)} here"
                for name in names[:MAX_DIFFERENCES]
            )
            num_more = len(names) - MAX_DIFFERENCES
            more = f"; and {num_more} more" if num_more > 0 else ""
            return (
                f"process {index} of {len(identities)} differs from process 0 ({shown}{more}); all "
                "end: start all of them with the same command, data and version"
            )
    return ""


def listen(host: str, port: int) -> socket.socket:
    """Return a server socket at `host` or, unless it is a loopback address, at all interfaces."""
    is_local = is_loopback(host)
    dual = not is_local and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
    address = (host if is_local else "", port)
    return socket.create_server(address, family=family, dualstack_ipv6=dual)


def is_loopback(host: str) -> bool:
    """Return whether a host name refers to this machine alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


def call_roll(
    events: Events, server: socket.socket, address: str, number: int, end: float
) -> dict[int, Peer]:
    """Wait until processes 1, 2, ... connect, let them start, and return their peers by index.

    Connections that send nothing or an unknown line are refused and do not delay the others. If a
    process does not connect before `end`, Ended is raised.
    """
    indices = {f"here {index} {number}": index for index in range(1, number)}
    present: dict[int, Peer] = {}
    parent = os.getppid()
    server.settimeout(0.05)
    while len(present) < number - 1:
        if time.monotonic() > end or os.getppid() != parent:
            missing = name_processes([i for i in indices.values() if i not in present])
            raise Ended(f"{missing} missing: not all of {number} connected to {address}")
        with contextlib.suppress(OSError):  # no connection, or already closed
            Peer(events, server.accept()[0])
        while not events.empty():
            peer, line = events.get()
            # A process that disconnects or sends another line does not count as present.
            present = {index: other for index, other in present.items() if other is not peer}
            index = indices.get(line)
            if index is None or index in present:
                peer.close()
            else:
                peer.index, present[index] = index, peer
    for index, peer in present.items():
        peer.send(f"go {index}")
    return present


def connect_to_first(host: str, port: int, own: int, number: int, end: float) -> socket.socket:
    """Return a connection to process 0. Raises Ended if it does not take this process by `end`."""
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, port), timeout=2) as connection,
        ):
            connection.sendall(f"here {own} {number}\n".encode())
            connection.settimeout(max(0.01, end - time.monotonic()))
            with connection.makefile("rb", buffering=0) as lines:
                if lines.readline(64) == f"go {own}\n".encode():
                    connection.settimeout(None)
                    return connection.dup()  # stays open after `with`
        time.sleep(0.2)
    raise Ended(f"no process 0 that takes process {own} of {number} answers at {host}:{port}")


def watch(
    events: Events, peers: dict[int, Peer], own: Peer, number: int, silence: float, hang: float
) -> str | None:
    """Monitor all processes until they must end, and return the reason.

    The reason is None if the watched process ends normally, and "" if it dies. Otherwise it is a
    sentence that names a process that dies, hangs, or differs in identity from process 0.
    """
    parent, interval = os.getppid(), silence / 4
    last_sent, now = 0.0, float("-inf")
    try:
        while os.getppid() == parent:
            with contextlib.suppress(queue.Empty):
                take_line(*events.get(timeout=min(1.0, interval)), own, peers, number)
            everyone = own, *peers.values()
            if own.index == 0:
                compare_identities(everyone)
            before, now = now, time.monotonic()
            # Silence does not count if it was before all processes were present, or while this
            # watchdog itself was stopped, such as by a batch system that suspends a job.
            if now - before > interval:
                for peer in everyone:
                    peer.heard = now
                    peer.heartbeat = peer.heartbeat._replace(changed=now, heard=now)
            if now - last_sent > interval:
                last_sent = now
                for peer in peers.values():
                    peer.send(".")
                heartbeats = {peer.index: peer.heartbeat for peer in everyone}
                if own.index == 0 and (sentence := find_hung(heartbeats, number, hang, now)):
                    return sentence
            for peer in peers.values():
                if now - peer.heard > silence:
                    how = f"has sent nothing for {silence:g} s"
                    return describe_end([peer.index], number, how)
    except Ended as ended:
        return ended.args[0]
    return ""


def take_line(peer: Peer, line: str, own: Peer, peers: dict[int, Peer], number: int) -> None:
    """Handle a line from the watched process or from another watchdog."""
    word, _, rest = line.partition(" ")
    if peer is own and line == GONE:  # the other watchdogs notice it
        raise Ended("")
    if peer is own and word == "bye":
        for other in peers.values():
            other.send("bye")
        raise Ended(None)
    if peer is not own and peers.get(peer.index) is not peer:  # the peer has left
        return
    if line == GONE:
        raise Ended(describe_end([peer.index], number, "has ended"))
    if word == "bye":
        del peers[peer.index]
    elif word == "lost":
        raise Ended(rest)
    elif word == "all":
        own.send("all")
    elif word == "waits":
        peer.identity = rest
    elif word in ("at", "busy"):
        step, longest = rest.split()
        state, now = (int(step), word == "busy"), time.monotonic()
        changed = peer.heartbeat.changed if state == peer.heartbeat[:2] else now
        peer.heartbeat = Heartbeat(*state, float(longest), changed, now)
    if 0 in peers and word in ("at", "busy", "waits"):  # process 0 compares them
        peers[0].send(line)


def compare_identities(everyone: Sequence[Peer]) -> None:
    """Let all processes continue if all wait. If their identities differ, raise Ended."""
    if not all(peer.identity for peer in everyone):
        return
    if sentence := describe_difference({one.index: json.loads(one.identity) for one in everyone}):
        raise Ended(sentence)
    for peer in everyone:
        peer.identity = ""
        peer.send("all")


def main(host: str, port: int, index: int, number: int, log: str, *limits: float) -> None:
    """Connect the watchdog and monitor all processes. If one is lost, end the watched process."""
    join, silence, hang = limits
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # left to the watched process
        signal.signal(ignored, signal.SIG_IGN)
    parent, events = os.getppid(), queue.SimpleQueue()
    own, end = Peer(events, index=index), time.monotonic() + join
    try:
        if index:
            peers = {0: Peer(events, connect_to_first(host, port, index, number, end))}
        else:
            with listen(host, port) as server:
                peers = call_roll(events, server, f"{host}:{port}", number, end)
    except Ended as absent:
        own.send(
            f"{absent} within {join:g} s: check that all {number} processes are started with the "
            "same address (JAX_COORDINATOR_ADDRESS) and number, that process 0 runs on that "
            "machine, and that no firewall closes the port"
        )
        return
    except OSError as error:
        own.send(
            f"process 0 cannot listen at {host}:{port} ({error.strerror}): choose another port"
        )
        return
    own.send("go")
    sentence = watch(events, peers, own, number, silence, hang)
    for peer in peers.values() if sentence else ():
        peer.send(f"lost {sentence}")
    messages = ""
    with contextlib.suppress(OSError):
        if os.path.getsize(log):  # noqa: PTH202 (pathlib takes as long to import as all the rest)
            messages = f"C++ messages of process {index} are in {log}"
        else:
            os.unlink(log)  # noqa: PTH108
    if sentence and os.getppid() == parent:
        os.write(2, f"error: {'; '.join(filter(None, [sentence, messages]))}\n".encode())
        own.send("lost")
        time.sleep(1)  # time to end by itself
        if os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
    elif messages and sentence is not None:  # the watched process has failed, perhaps in C++
        os.write(2, f"{messages}\n".encode())


if __name__ == "__main__":
    HOST, PORT, INDEX, NUMBER, LOG, *SECONDS = sys.argv[1:]
    main(HOST, int(PORT), int(INDEX), int(NUMBER), LOG, *map(float, SECONDS))
    os._exit(0)  # threads may still read
