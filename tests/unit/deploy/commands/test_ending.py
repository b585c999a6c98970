"""SIGTERM and SIGINT end a process in time, at every step."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cdc.errors import ExitCode
from deploy.commands import merge

ROOT = Path(__file__).resolve().parents[4]
COMMAND = """
import ctypes, sys, threading, time
import millrace
from deploy.commands import app, ending
from deploy.commands.app import stop_on_signals

ending.ORDERLY_S, ending.CLEANUP_S = float(sys.argv[2]), 0.4

def deaf():
    print("begun", flush=True)
    time.sleep(60)

def in_c():
    "Python's handlers wait until the call returns, and this one never does."
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex)
    print("begun", flush=True)
    lock(mutex)

def thread():
    "The command itself ends at once, and a thread of its doesn't."
    threading.Thread(target=time.sleep, args=(60,)).start()
    deaf()

def flag():
    "It has taken note, and is at something long."
    with stop_on_signals() as stop:
        print("begun", flush=True)
        stop.wait()
        print("noted", flush=True)
        time.sleep(60)

def cleanup():
    "What is held at servers is let go."
    try:
        flag()
    finally:
        print("let go", flush=True)

def orderly():
    with stop_on_signals() as stop:
        print("begun", flush=True)
        stop.wait()

def complaining():
    "It has failed, and tells so: also that may take for ever."
    from cdc.errors import MillraceError
    print("begun", flush=True)
    raise MillraceError("no " * 100_000)

command = millrace._command
millrace._command = globals()[sys.argv[1]]
if sys.argv[1] == "complaining":
    app.app, millrace._command = lambda **_: complaining(), command
millrace.main()
"""
ORDERLY_S = 0.6


def ended(
    way: str, *numbers: signal.Signals, orderly_s: float = ORDERLY_S
) -> tuple[int, str, str, float]:
    """How a command ends that gets these signals: code, output, complaints, seconds."""
    words = [sys.executable, "-c", COMMAND, way, str(orderly_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as command:
        assert command.stdout is not None
        said = command.stdout.readline()
        time.sleep(0.2)  # it is at what it has begun
        began = time.monotonic()
        for number in numbers:
            os.kill(command.pid, number)
            time.sleep(0.1)
        output, complaints = command.communicate(timeout=30)
        return command.returncode, said + output, complaints, time.monotonic() - began


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", ["deaf", "in_c", "thread", "flag", "cleanup"])
def test_a_command_that_doesnt_end_is_ended(way: str, number: signal.Signals) -> None:
    code, output, complaints, seconds = ended(way, number)
    assert code == ExitCode.INTERRUPTED, complaints
    assert seconds < 10
    assert "Traceback" not in complaints
    if way in {"flag", "cleanup"}:
        assert "cut short: the next start continues" in complaints
    if way == "cleanup":
        assert output.splitlines()[-1] == "let go"


def test_an_interrupted_command_says_so_once_and_that_nothing_is_lost() -> None:
    code, _, complaints, _ = ended("deaf", signal.SIGTERM, orderly_s=30)
    told = "millrace: interrupted\n  → run it again: it continues where it stopped\n"
    assert (code, complaints) == (ExitCode.INTERRUPTED, told)
    _, _, complaints, _ = ended("flag", signal.SIGTERM)
    assert complaints.count("continues where it stopped") == 1


def test_a_command_that_ends_in_order_is_left_to_it() -> None:
    code, _, complaints, _ = ended("orderly", signal.SIGTERM)
    assert (code, complaints) == (0, "")


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cuts_short_at_once(again: signal.Signals) -> None:
    code, _, _, seconds = ended("flag", signal.SIGTERM, again, orderly_s=30)
    assert code == ExitCode.INTERRUPTED
    assert seconds < 10


@pytest.mark.parametrize("way", ["deaf", "in_c", "flag", "complaining"])
def test_a_command_ends_whose_complaints_nobody_reads(way: str) -> None:
    """As with ``millrace run 2>&1 | less``, once the pipe is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    words = [sys.executable, "-c", COMMAND, way, str(ORDERLY_S)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=writer) as command:
        assert command.stdout is not None
        command.stdout.readline()
        time.sleep(0.2)
        command.send_signal(signal.SIGTERM)
        try:
            assert command.wait(10) == ExitCode.INTERRUPTED
        finally:
            command.kill()
    os.close(reader)
    os.close(writer)


def test_what_a_merge_is_at_is_cancelled_once_it_has_had_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge, "TABLE_ENDS_S", 0.2)
    monkeypatch.setattr(merge, "_CANCEL_AGAIN_S", 0.01)
    stop, cancelled, calls = threading.Event(), threading.Event(), list[float]()

    def cancel() -> None:
        calls.append(time.monotonic())
        if len(calls) > 1:  # a table has several jobs, one after the other
            cancelled.set()

    with merge._cancelled_late(stop, cancel):
        assert not cancelled.wait(0.3), "nobody has told it to end"
        told = time.monotonic()
        stop.set()
        assert cancelled.wait(10)
    assert calls[0] - told >= 0.2
