"""The watchdog of one of several processes: it says who has come, who waits, and who has gone.

JAX ends a process whose peers are gone by a C++ abort, after pages of trace or minutes of silence;
and so it does where nobody answers at the start. So a small program beside each process, which
needs nothing but the standard library, calls the roll before JAX starts, and watches the
connections from then on. The lines that go both ways between the watchdog of process 0 and the
others: "here ID NUMBER", "go ID", "." (alive), "waits IDENTITY", "all", "lost SENTENCE", "bye"; and
the heartbeats of the program itself, "at STEP LONGEST" or "busy STEP LONGEST", by which the
watchdog of process 0 finds one that hangs (see `find_hung`).

IDENTITY is a JSON object: the config and versions after the roll call, the data after loading. If
the processes wait with different identities, all end with a sentence that names the difference.

The roll call keeps out accidents, such as port scans, browsers and launches of another size.
Networks of a cluster are trusted.

    python watch.py HOST PORT ID NUMBER LOG JOIN_SECONDS SILENCE_SECONDS HANG_SECONDS

LOG is the file that receives the C++ messages of the program.
"""

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

#: A process says where it is about so often, whether it moves or not.
HEARTBEAT_SECONDS = 1.0
#: Before the longest wait so far has passed so many times, nothing hangs.
FACTOR = 10
#: So many times as long as at a step may a program be busy, while others wait for it.
BUSY_FACTOR = 12
#: At most this many differences are named, each value by at most this many characters.
MAX_DIFFERENCES, MAX_VALUE = 3, 60
AGAIN = "then start all of them again, and they resume from the last checkpoint"


class Heartbeat(NamedTuple):
    """What a process last said of itself."""

    step: int
    """The last one that it has a batch for, and launches."""
    is_busy: bool
    """Starting, evaluating, saving, or done with training."""
    longest: float
    """Seconds that it stayed at a step, so far."""
    changed: float
    """When the first two changed."""
    heard: float
    """When it said anything."""


def next_heartbeat(before: Heartbeat, line: str, now: float) -> Heartbeat:
    """Return the heartbeat after a line that came `now`.

    >>> next_heartbeat(Heartbeat(7, False, 0.5, 10.0, 12.0), "at 7 0.5", 13.0)
    Heartbeat(step=7, is_busy=False, longest=0.5, changed=10.0, heard=13.0)
    >>> next_heartbeat(Heartbeat(7, False, 0.5, 10.0, 12.0), "busy 8 0.6", 13.0)
    Heartbeat(step=8, is_busy=True, longest=0.6, changed=13.0, heard=13.0)
    """
    word, step, longest = line.split()
    is_same = (int(step), word == "busy") == before[:2]
    return Heartbeat(
        int(step), word == "busy", float(longest), before.changed if is_same else now, now
    )


def find_hung(
    heartbeats: Mapping[int, Heartbeat], number: int, least_seconds: float, now: float
) -> str:
    """Return a sentence about the processes that hang, by their heartbeats, or "".

    The limit is `least_seconds`, or `FACTOR` times the longest that any process has stayed at a
    step. A program that says nothing for so long, not even that it is where it was, is stopped. If
    all speak, and none has moved for so long, then the others wait for the one that is furthest
    behind: they have begun a step that needs it. If that one is busy, it has `BUSY_FACTOR` times as
    long; and if all are, as long as it takes: one may fit probes, and no step needs it.
    """
    longest = max(heartbeat.longest for heartbeat in heartbeats.values())
    limit = max(least_seconds, FACTOR * longest)
    stopped = [index for index, heartbeat in heartbeats.items() if now - heartbeat.heard > limit]
    if stopped:
        at = max(heartbeats[index].step for index in stopped)
        how = f"gave no sign of life for {limit:.0f} s, since step {at}: stopped, or stuck"
        return describe_end(stopped, number, how)
    is_unclear = any(
        now - heartbeat.heard > 5 * HEARTBEAT_SECONDS for heartbeat in heartbeats.values()
    )
    step, is_busy = hindmost = min(heartbeat[:2] for heartbeat in heartbeats.values())
    ahead = max(heartbeat.step for heartbeat in heartbeats.values())
    limit *= BUSY_FACTOR if is_busy else 1
    has_moved = any(now - heartbeat.changed <= limit for heartbeat in heartbeats.values())
    if is_unclear or has_moved or all(heartbeat.is_busy for heartbeat in heartbeats.values()):
        return ""
    where = f"at step {step} for {limit:.0f} s (the longest wait before: {longest:.1f} s)"
    behind = [index for index, heartbeat in heartbeats.items() if heartbeat[:2] == hindmost]
    if len(behind) == len(heartbeats):
        return (
            f"all processes stayed {where}, and which one hangs cannot be told: it may be a device "
            f"or the network; all end: look at the output of each, {AGAIN}"
        )
    return describe_end(behind, number, f"stayed {where}, and others wait at step {ahead}")


def describe_end(indices: list[int], number: int, how: str) -> str:
    """Return a sentence that names the processes because of which all end."""
    names = f"process{'es' * (len(indices) > 1)} {', '.join(map(str, indices))}"
    return f"{names} of {number} {how}; all end: look at the output of {names}, {AGAIN}"


def describe_difference(identities: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a sentence that names the first process unlike process 0 and how it differs, or "".

    >>> describe_difference({0: {"seed": 0}, 1: {"seed": 1}})[:66]
    'process 1 of 2 differs from process 0 (seed: 0 there, 1 here); all'
    """
    first = identities[0]
    for index, own in sorted(identities.items()):
        names = [name for name in sorted({*first, *own}) if first.get(name) != own.get(name)]
        if names:
            shown = [
                f"{name}: {_show(first, name)} there, {_show(own, name)} here"
                for name in names[:MAX_DIFFERENCES]
            ]
            more = len(names) - len(shown)
            return (
                f"process {index} of {len(identities)} differs from process 0 ({'; '.join(shown)}"
                f"{f'; and {more} more' if more else ''}); all end: start all of them with the "
                "same command, data and version"
            )
    return ""


def _show(identity: Mapping[str, Any], name: str) -> str:
    return json.dumps(identity[name])[:MAX_VALUE] if name in identity else "absent"


class Peer:
    """A connection to another watchdog, or the pipe from the own process."""

    def __init__(self, number: int, handle: int):
        self.number, self.handle = number, handle
        self.heard, self.rest = time.monotonic(), b""
        self.identity = ""  # with which it waits, as JSON
        self.heartbeat = Heartbeat(0, True, 0.0, self.heard, self.heard)

    def read(self) -> list[str]:
        """Return the lines that have come; EOFError at the end."""
        try:
            data = os.read(self.handle, 4096)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [line.decode() for line in lines]


def send(peer: Peer, line: str) -> None:
    """Send a line to another watchdog; that one is gone is noticed when it is read from."""
    with contextlib.suppress(OSError):
        os.write(peer.handle, f"{line}\n".encode())


def send_to_own(line: str) -> None:
    """Send a line to the own process."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


class Absent(Exception):
    """Who is missing, in words that go before "within so many seconds"."""


def connect_all(
    host: str, port: int, me: int, number: int, seconds: float
) -> tuple[dict[int, Peer], str]:
    """Return connections to all others (from process 0), or to process 0 (from another).

    And the address that process 0 listens at, if it is not all of the machine's.

    Raises:
        Absent: not all came in time.
        OSError: process 0 cannot listen.
    """
    end = time.monotonic() + seconds
    if me:
        return {0: connect_to_first(host, port, me, number, end)}, ""
    with listen(host, port) as server:
        address = server.getsockname()[0]
        present = call_roll(server, f"{host}:{port}", number, end)
    peers = {}
    for index, connection in present.items():
        connection.setblocking(True)
        peers[index] = Peer(index, connection.detach())
        send(peers[index], f"go {index}")
    return peers, "" if address in ("::", "0.0.0.0") else address


def own_addresses(host: str) -> list[str]:
    """Return the addresses at which the others look for `host`, as far as that is known here.

    A name may be a loopback here (as in /etc/hosts of Debian) and an address elsewhere.
    """
    try:
        found = [str(at[0]) for *_, at in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []
    is_loop = any(address.startswith(("127.", "::1")) for address in found)
    return [] if is_loop and host not in ("localhost", *found) else found


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens where the others are told to come, and nowhere else.

    All interfaces are listened on, and a line says so, if that is no address of this machine, as
    behind a NAT.

    Raises:
        OSError: the port is taken.
    """
    for address in own_addresses(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            return socket.create_server((address, port), family=family)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    note = f"process 0 listens on all interfaces: it cannot tell which of them is {host}\n"
    os.write(2, note.encode())
    return server


def call_roll(
    server: socket.socket, where: str, number: int, end: float
) -> dict[int, socket.socket]:
    """Return the connections of processes 1, 2, ..., by what they say.

    Whoever says nothing, or anything else, holds nobody up and takes nobody's place.
    """
    ready, parent, num_refused = selectors.DefaultSelector(), os.getppid(), 0
    server.setblocking(False)
    ready.register(server, selectors.EVENT_READ)
    said: dict[socket.socket, tuple[bytes, float]] = {}  # so far, and since when
    present: dict[int, socket.socket] = {}

    def drop(connection):
        ready.unregister(connection)
        connection.close()
        said.pop(connection, None)

    while len(present) < number - 1:
        now = time.monotonic()
        if now > end or os.getppid() != parent:
            missing = [index for index in range(1, number) if index not in present]
            names = f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            for connection in (*said, *present.values()):
                connection.close()
            refused = f" ({num_refused} connections of something else)" if num_refused else ""
            raise Absent(f"{names} missing{refused}: not all of {number} came to {where}")
        for key, _ in ready.select(min(0.5, max(0.0, end - now))):
            connection: Any = key.fileobj
            if connection is server:
                with contextlib.suppress(OSError):  # gone before it was looked at
                    connection, _ = server.accept()
                    connection.setblocking(False)
                    ready.register(connection, selectors.EVENT_READ)
                    said[connection] = b"", now
                continue
            try:
                data = connection.recv(256)
            except OSError:
                data = b""
            if connection not in said:  # it has come, and now it goes or is of no sense
                present = {i: other for i, other in present.items() if other is not connection}
                drop(connection)
                continue
            line = said[connection][0] + data
            if data and b"\n" not in line and len(line) < 256:
                said[connection] = line, said[connection][1]
                continue
            index = find_index(line, number)
            if index is None or index in present:
                num_refused += 1
                drop(connection)
            else:
                present[index] = connection
                del said[connection]
        # So many at most, and so long.
        late = [one for one, (_, since) in said.items() if now - since > 5] + [*said][:-64]
        for connection in dict.fromkeys(late):
            num_refused += 1
            drop(connection)
    for connection in said:
        connection.close()
    ready.close()
    return present


def find_index(line: bytes, number: int) -> int | None:
    r"""Return the process of `number` that says "here ID NUMBER"; None for any other line.

    >>> find_index(b"here 1 2\n", 2), find_index(b"here 1 3\n", 2)
    (1, None)
    """
    lines = {f"here {index} {number}\n".encode(): index for index in range(1, number)}
    return lines.get(line)


def connect_to_first(host: str, port: int, me: int, number: int, end: float) -> Peer:
    """Try until process 0 answers, or until `end` (Absent)."""
    is_heard = False
    while True:
        try:
            with socket.create_connection((host, port), timeout=2) as connection:
                connection.sendall(f"here {me} {number}\n".encode())
                answer, wanted = b"", f"go {me}\n".encode()
                while wanted.startswith(answer) and answer != wanted:
                    connection.settimeout(max(0.01, end - time.monotonic()))
                    answer += (data := connection.recv(len(wanted) - len(answer)))
                    if not data:
                        break
                if answer == wanted:
                    connection.settimeout(None)
                    return Peer(0, connection.detach())
                is_heard = True
        except OSError:
            pass
        if time.monotonic() > end:
            raise Absent(
                f"what answers at {host}:{port} does not take this process {me} (it is something "
                f"else, is a launch of another size, or has a process {me})"
                if is_heard
                else f"no process 0 answers at {host}:{port}"
            )
        time.sleep(0.2)


class Ended(Exception):
    """The watch is over; its argument is what `watch` returns."""


def watch(peers: dict[int, Peer], me: int, number: int, silence: float, hang: float) -> str | None:
    """Wait until the own process leaves (None) or dies (""), or another ends all (a sentence).

    A process ends all if it dies, hangs, or waits with another identity than process 0.
    """
    own, parent = Peer(me, sys.stdin.fileno()), os.getppid()
    ready = selectors.DefaultSelector()
    for peer in (own, *peers.values()):
        ready.register(peer.handle, selectors.EVENT_READ, peer)
    interval, last_sent, now = silence / 4, 0.0, float("-inf")
    try:
        while os.getppid() == parent:
            for key, _ in ready.select(min(1.0, interval)):
                for line in read_lines(key.data, own, number):
                    if line == "bye" and key.data is not own:
                        ready.unregister(key.fd)
                    take_line(line, key.data, own, peers)
            if not me:
                compare_identities(own, peers)
            before, now = now, time.monotonic()
            # Nothing is held against others from before the roll was full, nor from while this
            # program was stopped itself, as by a batch system that suspends a job.
            if now - before > interval:
                for peer in (own, *peers.values()):
                    peer.heard = now
                    peer.heartbeat = peer.heartbeat._replace(changed=now, heard=now)
            if now - last_sent > interval:
                last_sent = now
                for peer in peers.values():
                    send(peer, ".")
                heartbeats = {peer.number: peer.heartbeat for peer in (own, *peers.values())}
                if not me and (sentence := find_hung(heartbeats, number, hang, now)):
                    return sentence
            for peer in peers.values():
                if now - peer.heard > silence:
                    how = f"has not been heard of for {silence:g} s"
                    return describe_end([peer.number], number, how)
    except Ended as ended:
        return ended.args[0]
    return ""


def read_lines(peer: Peer, own: Peer, number: int) -> list[str]:
    """Return the lines that have come from a peer.

    Raises:
        Ended: it is gone, without a farewell; that of the own process is seen by the others.
    """
    try:
        return peer.read()
    except EOFError:
        how = "" if peer is own else describe_end([peer.number], number, "has ended")
        raise Ended(how) from None


def take_line(line: str, peer: Peer, own: Peer, peers: dict[int, Peer]) -> None:
    """Do what a line from the own process or from a peer is for.

    Raises:
        Ended: the own process leaves, or another was lost.
    """
    passes_on = 0 in peers  # what process 0 has to know
    if line == "bye" and peer is own:
        for other in peers.values():
            send(other, "bye")
        raise Ended(None)
    if line == "bye":
        del peers[peer.number]
    elif line.startswith("lost "):
        raise Ended(line.removeprefix("lost "))
    elif line == "all":
        send_to_own("all")
    elif line.startswith(("at ", "busy ")):
        peer.heartbeat = next_heartbeat(peer.heartbeat, line, time.monotonic())
        if passes_on:
            send(peers[0], line)
    elif line.startswith("waits "):
        peer.identity = line.removeprefix("waits ")
        if passes_on:
            send(peers[0], line)


def compare_identities(own: Peer, peers: Mapping[int, Peer]) -> None:
    """Let all go on if all wait with the same identity.

    Raises:
        Ended: one of them differs.
    """
    everyone = own, *peers.values()
    known = {peer.number: json.loads(peer.identity) for peer in everyone if peer.identity}
    if len(known) < len(everyone):
        return
    if sentence := describe_difference(known):
        raise Ended(sentence)
    for peer in everyone:
        peer.identity = ""
    for peer in peers.values():
        send(peer, "all")
    send_to_own("all")


def take_messages(log: str, me: int) -> str:
    """Return where the C++ messages of process `me` are, or "" after removing an empty log."""
    with contextlib.suppress(OSError):
        if os.path.getsize(log):  # noqa: PTH202 (pathlib takes as long to import as all the rest)
            return f"C++ messages of process {me} are in {log}"
        os.unlink(log)  # noqa: PTH108
    return ""


def main(
    host: str, port: int, me: int, number: int, log: str, join: float, silence: float, hang: float
) -> None:
    """Connect, watch, and end the own process with a sentence if one is lost or hangs."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the own process handles them
        signal.signal(ignored, signal.SIG_IGN)
    parent = os.getppid()
    try:
        peers, address = connect_all(host, port, me, number, join)
    except Absent as absent:
        send_to_own(
            f"{absent} within {join:g} s: check that all {number} processes are started with the "
            "same address (JAX_COORDINATOR_ADDRESS) and number, that process 0 runs on that "
            "machine, and that no firewall closes the port"
        )
        return
    except OSError as error:
        send_to_own(
            f"process 0 cannot listen at {host}:{port} ({error.strerror}): choose another port"
        )
        return
    send_to_own(f"go {address}")
    sentence = watch(peers, me, number, silence, hang)
    for peer in peers.values() if sentence else ():
        send(peer, f"lost {sentence}")
    messages = take_messages(log, me)
    if sentence is None:
        return
    if sentence and os.getppid() == parent:
        os.write(2, f"error: {'; '.join(filter(None, [sentence, messages]))}\n".encode())
        send_to_own("lost")
        time.sleep(1)  # time to end by itself
        if os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
    elif messages:  # the own process failed, and has said how, unless it was C++ that ended it
        os.write(2, f"{messages}\n".encode())


if __name__ == "__main__":
    HOST, PORT, ID, NUMBER, LOG, *SECONDS = sys.argv[1:]
    main(HOST, int(PORT), int(ID), int(NUMBER), LOG, *map(float, SECONDS))
