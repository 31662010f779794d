"""The companion of one of several processes: it says who has come, who waits, and who has gone.

JAX ends a process whose peers are gone by a C++ abort, after pages of trace or minutes of silence;
and so it does where nobody answers at the start. So a small program beside each process, which
needs nothing but the standard library, calls the roll before JAX starts, and watches the
connections from then on. The lines that go both ways between the companion of process 0 and the
others: "here ID", "go", "." (alive), "waits", "all", "lost SENTENCE", "bye".

    python watch.py HOST PORT ID NUMBER JOIN_SECONDS SILENCE_SECONDS
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time


class Peer:
    """A connection to another companion, or the pipe from the own process."""

    def __init__(self, number: int, handle: int):
        self.number, self.handle = number, handle
        self.heard, self.rest, self.waits = time.monotonic(), b"", False

    def read(self) -> list[str]:
        """Lines that have come; raises EOFError at the end."""
        try:
            data = os.read(self.handle, 4096)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [line.decode() for line in lines]


def tell(peer: Peer, line: str) -> None:
    """One line to another companion; one that is gone is noticed when it is read."""
    with contextlib.suppress(OSError):
        os.write(peer.handle, f"{line}\n".encode())


def answer(line: str) -> None:
    """One line to the own process."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def call_roll(host: str, port: int, me: int, number: int, seconds: float) -> dict[int, Peer]:
    """Connections to all others (from process 0) or to process 0; raises TimeoutError, OSError."""
    end = time.monotonic() + seconds
    if me:
        return {0: find_first(host, port, me, end)}
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    dual = family == socket.AF_INET6
    peers: dict[int, Peer] = {}
    with socket.create_server(("", port), family=family, dualstack_ipv6=dual) as server:
        while len(peers) < number - 1:
            server.settimeout(max(0.01, end - time.monotonic()))
            connection, _ = server.accept()
            connection.settimeout(5)
            words = connection.recv(64).decode(errors="replace").split()
            connection.settimeout(None)
            if len(words) == 2 and words[0] == "here" and 0 < int(words[1]) < number:
                peers[int(words[1])] = Peer(int(words[1]), connection.detach())
    for peer in peers.values():
        tell(peer, "go")
    return peers


def find_first(host: str, port: int, me: int, end: float) -> Peer:
    """Try until process 0 answers."""
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=2)
            connection.sendall(f"here {me}\n".encode())
            connection.settimeout(max(0.01, end - time.monotonic()))
            if connection.recv(3) == b"go\n":
                connection.settimeout(None)
                return Peer(0, connection.detach())
            connection.close()
        except OSError:
            pass
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def watch(peers: dict[int, Peer], me: int, number: int, silence: float) -> str:
    """Until the own process leaves (""), or until another is lost: a sentence."""
    own, parent = Peer(me, sys.stdin.fileno()), os.getppid()
    ready = selectors.DefaultSelector()
    for peer in (own, *peers.values()):
        ready.register(peer.handle, selectors.EVENT_READ, peer)
    beat, told = silence / 4, 0.0

    def lost(peer: Peer, how: str) -> str:
        return (
            f"process {peer.number} of {number} {how}; the others end with it: look at its output, "
            "then start all of them again, and they resume from the last checkpoint"
        )

    while True:
        for key, _ in ready.select(min(1.0, beat)):
            peer: Peer = key.data
            try:
                lines = peer.read()
            except EOFError:
                if peer is own:
                    return ""  # it is gone, without a farewell: the others see that
                return lost(peer, "has ended")
            for line in lines:
                if line == "bye" and peer is own:
                    for other in peers.values():
                        tell(other, "bye")
                    return ""
                if line == "bye":
                    ready.unregister(peer.handle)
                    del peers[peer.number]
                elif line.startswith("lost "):
                    return line.removeprefix("lost ")
                elif line == "all":
                    answer("all")
                elif line == "waits":
                    peer.waits = True
                    if me:
                        tell(peers[0], "waits")
        if not me and own.waits and all(peer.waits for peer in peers.values()):
            for peer in (own, *peers.values()):
                peer.waits = False
            for peer in peers.values():
                tell(peer, "all")
            answer("all")
        now = time.monotonic()
        if now - told > beat:
            told = now
            for peer in peers.values():
                tell(peer, ".")
        for peer in peers.values():
            if now - peer.heard > silence:
                return lost(peer, f"has not been heard of for {silence:g} s")
        if os.getppid() != parent:
            return ""


def main(host: str, port: int, me: int, number: int, join: float, silence: float) -> None:
    """Call the roll, watch, and end the own process with a sentence if another is lost."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the own process handles them
        signal.signal(ignored, signal.SIG_IGN)
    where, parent = f"{host}:{port}", os.getppid()
    try:
        peers = call_roll(host, port, me, number, join)
    except TimeoutError:
        who = f"no process 0 answers at {where}" if me else f"not all of {number} came to {where}"
        answer(
            f"{who} within {join:g} s: check that all {number} processes are started with the same "
            "address (JAX_COORDINATOR_ADDRESS) and number, that process 0 runs on that machine, "
            "and that no firewall closes the port"
        )
        return
    except OSError as error:
        answer(f"process 0 cannot listen at {where} ({error.strerror}): choose another port")
        return
    answer("go")
    sentence = watch(peers, me, number, silence)
    if not sentence:
        return
    for peer in peers.values():
        tell(peer, f"lost {sentence}")
    if os.getppid() != parent:  # the own process failed at the same time, and has said how
        return
    os.write(2, f"error: {sentence}\n".encode())
    answer("lost")
    time.sleep(1)  # time to end by itself
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), *map(float, sys.argv[5:7]))
