"""A command line → a child process with a log file, which ends with us unless it is kept.

A child runs in a session of its own, so Ctrl-C in our terminal reaches only us, and we decide the
order in which servers stop. If we end without stopping it (SIGKILL, a crash), a *lifeline* does: a
shell that reads from a pipe whose other end only we hold. It kills the child's process group when
the pipe ends. Linux's PR_SET_PDEATHSIG would need no second process. But it fires when the starting
*thread* ends, doesn't survive a change of user, and doesn't exist on macOS.
"""

import http.client
import os
import pwd
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self

# `nobody` first: an account `postgres` may own a real server's files, which a superuser of our
# temporary server could then read.
_CANDIDATES: Final = ("nobody", "postgres")


_LOOPBACK: Final = "127.0.0.1"
_FIRST: Final = 15_000
_LAST: Final = 32_000  # the ephemeral range starts at 32768 on Linux, at 49152 on macOS
_ATTEMPTS_MAX: Final = 1_000
_held: dict[int, socket.socket] = {}
READY_TIMEOUT_S: Final = 120.0  # a busy machine with two cores needs three times a quiet one's time
_STOP_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.03
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 16_384
_LIFELINE: Final = 'read -r _; kill -s KILL -- "-$1"'


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the operating system, for a child process."""

    name: str
    uid: int
    gid: int

    def reaches(self, path: Path) -> bool:
        """Whether this user may traverse every folder on the way to `path`, and enter it.

        Only root can check that, as only root changes to another account.
        """
        words = ["test", "-x", str(path)]
        asked = subprocess.run(
            words, check=False, user=self.uid, group=self.gid, extra_groups=[], cwd="/"
        )
        return asked.returncode == 0


def unprivileged() -> Account | None:
    """Return the account to change to if we are root, otherwise None."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    names = " or ".join(_CANDIDATES)
    raise LookupError(f"PostgreSQL refuses to run as root, and no user of {names} exists to run it")


def run_folder(prefix: str = "millrace-") -> Path:
    """Create a temporary folder in which every server of ours can work."""
    account = unprivileged()
    if account is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - mkdtemp is safe there
        if Path(parent).is_dir() and account.reaches(Path(parent)):
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            folder.chmod(0o755)
            return folder
    raise LookupError(f"user {account.name} can't reach any temporary folder; set TMPDIR")


def reserve_port() -> int:
    """Find a free TCP port on 127.0.0.1 and reserve it until this process ends."""
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
    """Whether a process on this machine accepts TCP connections on the port."""
    try:
        socket.create_connection((_LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def answers(port: int, path: str) -> bool:
    """Whether a process on this machine answers 200 to GET of a path on the port."""
    connection = http.client.HTTPConnection(_LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _bind(port: int, kind: socket.SocketKind) -> socket.socket | None:
    sock = socket.socket(socket.AF_INET, kind)
    try:
        sock.bind((_LOOPBACK, port))
    except OSError:
        sock.close()
        return None
    return sock


class ServerError(RuntimeError):
    """A server didn't start, or ended unexpectedly."""


class Child(Protocol):
    """The interface of a child process that we need. `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Return the process id, which is also that of its process group."""

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal. None: it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait this number of seconds for its end. Raise subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it still runs."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run: the words, the output file, and the account."""

    name: str
    words: tuple[str, ...]
    log: Path
    account: Account | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, *, keep: bool = False) -> "Process":
        """Start it in the background. `keep` lets it outlive us."""
        child = self.spawn()
        return Process(self, child, None if keep else _lifeline(child.pid))

    def run(self) -> None:
        """Run it to its end. An exit code other than 0 raises with the end of its log."""
        code = self.spawn().wait()
        if code != 0:
            raise ServerError(f"{self.name} ended with exit code {code}. {self.log_end()}")

    def log_end(self) -> str:
        """Quote the last lines of the log, and name the file."""
        size = self.log.stat().st_size
        with self.log.open("rb") as log:
            log.seek(max(0, size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n  ".join([f"The end of {self.log}:", *lines])

    def spawn(self) -> Child:
        """Start it, and leave it to the caller."""
        account = self.account
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                env=environment_with(self.environment),
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                start_new_session=True,
            )


def environment_with(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, which another thread may change, and more."""
    own = {name: os.environ.get(name) for name in list(os.environ)}
    return {name: value for name, value in own.items() if value is not None} | dict(more)


def end(child: Child, ask: signal.Signals, timeout_s: float = _STOP_TIMEOUT_S) -> None:
    """Ask a process to end by a signal, and kill its group if it doesn't in time."""
    if child.poll() is not None:
        return
    child.send_signal(ask)
    child.send_signal(signal.SIGCONT)  # a paused process doesn't get the first one
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _kill(child)


def _kill(child: Child) -> None:
    _signal_group(child, signal.SIGKILL)
    child.wait()


def _signal_group(child: Child, number: signal.Signals) -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError):  # it has ended in the meantime
            os.killpg(child.pid, number)


class Process:
    """A started command: wait for it, pause it, end it."""

    def __init__(
        self,
        command: Command,
        child: Child,
        lifeline: subprocess.Popen[bytes] | None,
    ) -> None:
        self.command = command
        self._child = child
        self._lifeline = lifeline

    @property
    def pid(self) -> int:
        """The process id, which is also that of its process group and session."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the process hasn't ended yet (a paused one runs)."""
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal. None: it runs."""
        return self._child.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait for its end, and return the exit code. Raise subprocess.TimeoutExpired."""
        return self._child.wait(timeout_s)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Poll `ready`. Raise with the end of the log if the process ends or time is up."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            code = self._child.poll()
            if code is not None:
                self._cut_lifeline()
                reason = f"ended with exit code {code} while starting"
            elif time.monotonic() > deadline:
                self.kill()
                reason = f"wasn't ready after {timeout_s:.0f} s"
            else:
                time.sleep(_POLL_S)
                continue
            raise ServerError(f"{self.command.name} {reason}. {self.command.log_end()}")

    def stop(
        self, ask: signal.Signals = signal.SIGTERM, timeout_s: float = _STOP_TIMEOUT_S
    ) -> None:
        """Ask it to end by a signal, and kill it if it doesn't in time."""
        end(self._child, ask, timeout_s)
        self._cut_lifeline()

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, without cleanup."""
        _kill(self._child)
        self._cut_lifeline()

    def pause(self) -> None:
        """Pause it: connections stay open and nothing answers."""
        _signal_group(self._child, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue."""
        _signal_group(self._child, signal.SIGCONT)

    def _cut_lifeline(self) -> None:
        # Killed before its pipe closes, as another process may have the child's id by then.
        if self._lifeline is not None:
            self._lifeline.kill()
            self._lifeline.communicate()
            self._lifeline = None


def _lifeline(pid: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _LIFELINE, "lifeline", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class Server(ABC):
    """A server of one process. Its ports, and its data if it keeps any, outlive stop and kill."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.process: Process | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start it, and wait until it answers."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it can be used."""

    def stop(self) -> None:
        """Shut it down in order, so that it writes its memory."""
        if self.process is not None:
            self.process.stop(self.stop_signal)

    def restart(self) -> None:
        """Stop it and start it again, on the same ports and data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Crash it by SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def pause(self) -> None:
        """Let it hang: connections stay open and nothing answers."""
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        """Let it continue after a pause."""
        if self.process is not None:
            self.process.resume()
