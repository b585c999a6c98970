"""Too little memory or disk, a JVM that doesn't answer: a merge ends, and reports the cause.

The next run continues there, and the tables equal the source in the end.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.processes import environment_with
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.xdist_group("jvms"),
    pytest.mark.timeout(400),
]
MakePipeline = Callable[..., RunningPipeline]
Filled = tuple[MakePipeline, list[tuple[int, str]]]
ROOT = Path(__file__).resolve().parents[2]
ENDS_S = 30
UNHURRIED = """
import millrace
from deploy.commands import ending
ending.ORDERLY_S = {}
millrace.main()
"""
"""A command that takes its time once it is told to end, unless it is told again."""
SAID = ("Traceback", "\tat ", "Exception in thread", '{"ts"', "%3|", "%4|")
"""What no user is to see."""


@pytest.fixture
def filled(pipeline: MakePipeline, database: Mapping[str, str]) -> Filled:
    """A log with a table of 4,000 rows, 8 MB of texts that don't compress; and the rows."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v text)")
        connection.execute(
            "INSERT INTO item SELECT i, (SELECT string_agg(md5(i::text || j::text), '')"
            " FROM generate_series(1, 64) j) FROM generate_series(1, 4000) i"
        )
        made = pipeline()
        assert made.stop(made.catch_up()) == ExitCode.OK
        rows = connection.execute("SELECT id, md5(v) FROM item ORDER BY id").fetchall()
    return pipeline, rows


def begin(
    made: RunningPipeline, *words: str, limit: int = 0, orderly_s: float = 0
) -> "subprocess.Popen[str]":
    """A command, as a user starts it; its files are at most so many bytes large."""
    program = ["-c", UNHURRIED.format(orderly_s)] if orderly_s else ["-m", "millrace"]
    command = subprocess.Popen(
        [sys.executable, *program, *words, "--config", str(made.config)],
        cwd=ROOT,
        env=environment_with({"PYTHONPATH": str(ROOT)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if limit:
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (limit, limit))
    return command


def said(command: "subprocess.Popen[str]", timeout_s: float = 180) -> str:
    output, complaints = command.communicate(timeout=timeout_s)
    both = output + complaints
    assert not [trace for trace in SAID if trace in both], both
    return both


def jvm_of(command: "subprocess.Popen[str]") -> int | None:
    """The id of a command's JVM, once it is one (a shell begins it)."""
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    with contextlib.suppress(OSError):
        for child in map(int, children.read_text(encoding="ascii").split()):
            if b"SparkSubmit" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return None


def until(is_so: Callable[[], object], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return True


def assert_applied(made: RunningPipeline, rows: list[tuple[int, str]]) -> None:
    """The next run goes on, and the table is what the source has."""
    merged = made.millrace("merge", "lakehouse")
    assert merged.returncode == ExitCode.OK, merged.stdout + merged.stderr
    path = str(made.folder / "lakehouse" / "public" / "item")
    stored = query_builder(path, "SELECT id, md5(v) AS v FROM t ORDER BY id")
    assert [(row["id"], row["v"]) for row in stored] == rows


@pytest.mark.proof
def test_a_merge_out_of_memory_says_so_and_the_next_one_goes_on(filled: Filled) -> None:
    """With some 10 MB more than Spark itself needs, which by itself would refuse so little."""
    pipeline, rows = filled
    little = {"spark.driver.memory": "56m", "spark.testing.memory": "1000000000"}
    began = time.monotonic()
    small = pipeline(sections={"spark": {**RunningPipeline.spark, **little}})
    merge = begin(small, "merge", "lakehouse")
    told = said(merge)
    assert merge.returncode == ExitCode.MEMORY, told
    assert "out of memory (spark.driver.memory = 56m)" in told
    assert "raise spark.driver.memory in [spark]" in told
    assert time.monotonic() - began < 90
    assert_applied(pipeline(), rows)


@pytest.mark.proof
@pytest.mark.parametrize("again", [True, False], ids=["twice", "once"])
def test_a_jvm_that_doesnt_answer_is_ended_with_the_merge(filled: Filled, *, again: bool) -> None:
    """As in a collection of garbage that takes minutes: it gets no signal, and answers nobody."""
    pipeline, rows = filled
    made = pipeline()
    merge = begin(made, "merge", "lakehouse", orderly_s=60 if again else 0)
    plans = made.folder / "lakehouse" / "_millrace" / "runs"
    until(lambda: plans.is_dir() and list(plans.glob("*.json")))
    jvm = jvm_of(merge)
    assert jvm is not None
    os.kill(jvm, signal.SIGSTOP)
    began = time.monotonic()
    merge.send_signal(signal.SIGTERM)
    if again:
        time.sleep(0.5)
        merge.send_signal(signal.SIGTERM)
    told = said(merge, ENDS_S)
    assert merge.returncode == ExitCode.INTERRUPTED, told
    assert time.monotonic() - began < ENDS_S
    assert "cut short: the next start continues" in told
    until(lambda: is_gone(jvm), 5)
    assert_applied(made, rows)


@pytest.mark.proof
@pytest.mark.parametrize("after_s", [0.5, 2, 4, 8])
def test_sigterm_ends_a_merge_while_its_jvm_starts(filled: Filled, after_s: float) -> None:
    pipeline, rows = filled
    made = pipeline()
    merge = begin(made, "merge", "lakehouse")
    time.sleep(after_s)
    jvm = jvm_of(merge)
    merge.send_signal(signal.SIGTERM)
    told = said(merge, ENDS_S)
    # So early it isn't told yet what a signal means; a run that is done by then is done.
    # `python -m` ends by SIGINT itself where that interrupts the text of a class (dataclasses).
    codes = {ExitCode.INTERRUPTED, ExitCode.OK, -signal.SIGTERM, -signal.SIGINT}
    assert merge.returncode in codes, told
    if jvm is not None:
        until(lambda: is_gone(jvm), ENDS_S)
    if merge.returncode != ExitCode.OK:
        assert_applied(made, rows)


@pytest.mark.proof
def test_a_file_system_that_takes_no_more_is_told(filled: Filled) -> None:
    """By a limit on the size of files, which needs no rights: Spark gets EFBIG, not ENOSPC."""
    pipeline, rows = filled
    made = pipeline()
    merge = begin(made, "merge", "lakehouse", limit=1 << 20)
    told = said(merge)
    assert merge.returncode == ExitCode.DISK, told
    assert "File too large" in told
    assert "ulimit -f" in told
    assert_applied(made, rows)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; only root can make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("a small file system is root's to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("section", "setting", "whose"),
    [
        ("lakehouse", "path", "the lakehouse can't be written"),
        ("spark", "spark.local.dir", "Spark can't write its temporary files"),
    ],
)
def test_a_full_disk_is_told_and_the_run_after_more_room_goes_on(
    filled: Filled, small_disk: Path, section: str, setting: str, whose: str
) -> None:
    pipeline, rows = filled
    sections = {section: {setting: str(small_disk)}}
    if section == "spark":
        sections["spark"] |= RunningPipeline.spark
    made = pipeline(sections=sections)
    merge = begin(made, "merge", "lakehouse")
    told = said(merge)
    assert merge.returncode == ExitCode.DISK, told
    assert f"{whose}: No space left on device" in told
    assert "free some space" in told
    more = ["mount", "-o", "remount,size=200m", str(small_disk)]
    subprocess.run(more, check=True)
    merged = made.millrace("merge", "lakehouse")
    assert merged.returncode == ExitCode.OK, merged.stdout + merged.stderr
    lake = small_disk if section == "lakehouse" else made.folder / "lakehouse"
    stored = query_builder(
        str(lake / "public" / "item"), "SELECT id, md5(v) AS v FROM t ORDER BY id"
    )
    assert [(row["id"], row["v"]) for row in stored] == rows
