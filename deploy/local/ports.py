"""Nothing -> loopback TCP ports that no other process of ours takes.

A port found by binding and closing a socket is free only until somebody else asks. So a port is
*reserved*: while this process lives it holds the UDP port of the same number, which our servers
don't use and which a second process looking for a port fails to bind. No files, nothing to clean up
after a crash. Ports lie below the range that the kernel hands out to outgoing connections, so that
a server that is stopped for a while finds its port free when it comes back.
"""

import secrets
import socket
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
_FIRST: Final = 15_000
_LAST: Final = 32_000  # the ephemeral range starts at 32768 on Linux, at 49152 on macOS
_ATTEMPTS_MAX: Final = 1_000

_held: dict[int, socket.socket] = {}


def reserve_port() -> int:
    """Find a free TCP port on 127.0.0.1 and keep it ours until this process ends."""
    for _ in range(_ATTEMPTS_MAX):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        reservation = _bind(port, socket.SOCK_DGRAM)
        if reservation is None:
            continue
        probe = _bind(port, socket.SOCK_STREAM)
        if probe is None:
            reservation.close()
            continue
        probe.close()
        _held[port] = reservation
        return port
    raise OSError(f"no free port between {_FIRST} and {_LAST} after {_ATTEMPTS_MAX} attempts")


def accepts(port: int) -> bool:
    """Say whether something on this machine accepts TCP connections on the port."""
    try:
        socket.create_connection((_LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def _bind(port: int, kind: socket.SocketKind) -> socket.socket | None:
    sock = socket.socket(socket.AF_INET, kind)
    try:
        sock.bind((_LOOPBACK, port))
    except OSError:
        sock.close()
        return None
    return sock
