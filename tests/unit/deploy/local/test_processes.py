"""Child processes: how they start, fail, pause and end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.processes import Command, ServerError, end, environment_with
from deploy.local.stack import KeptProcess, KeptStack

PARENT = """
import os, signal, sys
from pathlib import Path
from deploy.local.processes import Command
command = Command("sleeper", ("sleep", "60"), Path(sys.argv[1]) / "log")
print(command.start(keep=sys.argv[2] == "keep").pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def shell(folder: Path, script: str) -> Command:
    return Command("the shell", ("sh", "-c", script), folder / "shell.log")


def eventually(condition: Callable[[], bool], timeout_s: float = 60) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def sleeper_of_a_killed_parent(folder: Path, keep: str) -> KeptProcess:
    words = [sys.executable, "-c", PARENT, str(folder), keep]
    pipe = subprocess.PIPE
    parent = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert parent.stdout is not None
    sleeper = KeptProcess.of("sleeper", int(parent.stdout.readline()))
    parent.communicate("\n")  # only now: who looks at a process that may be gone finds nothing
    assert parent.returncode == -signal.SIGKILL
    return sleeper


def test_end_while_starting_quotes_the_log_and_names_it(tmp_path: Path) -> None:
    process = shell(tmp_path, "echo no such port; exit 3").start()
    with pytest.raises(ServerError, match="exit code 3") as failure:
        process.wait_until(lambda: False)
    assert "no such port" in str(failure.value)
    assert str(tmp_path / "shell.log") in str(failure.value)


def test_not_ready_in_time_ends_the_process(tmp_path: Path) -> None:
    process = shell(tmp_path, "echo still busy; sleep 60").start()
    with pytest.raises(ServerError, match=r"wasn't ready after 0 s.*\n  still busy"):
        process.wait_until(lambda: False, timeout_s=0.3)
    assert not process.running


def test_failed_command_quotes_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"ended with exit code 1.*\n  bad disk"):
        shell(tmp_path, "echo bad disk; exit 1").run()


def test_stop_kills_what_ignores_the_signal(tmp_path: Path) -> None:
    process = shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done").start()
    process.wait_until(lambda: "up" in (tmp_path / "shell.log").read_text())
    process.stop(timeout_s=0.2)
    assert not process.running


def test_a_kept_process_that_ignores_the_signal_is_killed_too(tmp_path: Path) -> None:
    process = shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done").start()
    process.wait_until(lambda: "up" in (tmp_path / "shell.log").read_text())
    end(KeptProcess.of("the shell", process.pid), signal.SIGTERM, timeout_s=0.2)
    assert not process.running
    process.kill()


def test_stop_reaches_a_paused_process(tmp_path: Path) -> None:
    process = Command("sleeper", ("sleep", "60"), tmp_path / "log").start()
    process.pause()
    started = time.monotonic()
    process.stop()
    assert time.monotonic() - started < 15
    assert not process.running


def test_paused_process_does_nothing_until_resumed(tmp_path: Path) -> None:
    process = shell(tmp_path, "while :; do echo tick; sleep 0.01; done").start()
    log = tmp_path / "shell.log"
    process.wait_until(lambda: log.stat().st_size > 0)
    process.pause()
    time.sleep(0.1)
    size = log.stat().st_size
    time.sleep(0.2)
    assert log.stat().st_size == size
    process.resume()
    assert eventually(lambda: log.stat().st_size > size)
    process.kill()


def test_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    sleeper = sleeper_of_a_killed_parent(tmp_path, "no")
    assert eventually(lambda: not sleeper.running)


def test_kept_child_outlives_its_parent_until_stopped(tmp_path: Path) -> None:
    sleeper = sleeper_of_a_killed_parent(tmp_path, "keep")
    file = tmp_path / "run" / "stack.json"
    folder = tmp_path / "servers"
    folder.mkdir()
    KeptStack(str(folder), True, [sleeper], {"kafka": {"a": "b"}}).write(file)
    assert file.stat().st_mode & 0o777 == 0o600
    kept = KeptStack.read(file)
    assert kept is not None
    assert kept.running
    kept.stop(file)
    assert not sleeper.running
    assert not folder.exists()
    assert KeptStack.read(file) is None


def test_recycled_process_id_is_not_signalled() -> None:
    impostor = KeptProcess("us", os.getpid(), "some other moment", "SIGKILL")
    impostor.stop()
    assert not impostor.running


def test_the_environment_may_change_while_it_is_read() -> None:
    """As pytest says in it which test runs, while cases start their processes in threads."""
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            os.environ["MILLRACE_TEST"] = "1"
            del os.environ["MILLRACE_TEST"]

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(2_000):
            assert environment_with({"MORE": "1"})["MORE"] == "1"
    finally:
        done.set()
        changing.join()
