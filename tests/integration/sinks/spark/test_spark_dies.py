"""A JVM that dies during a run: one clear message, and its own exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from cdc.errors import ExitCode

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("jvms")]

RUN = """
import os, signal, sys, time
from cdc.settings import Settings
from sinks import job
from sinks.spark import driver

driver.PAUSES_S, driver.PAUSES_PERCENT = 3, 20

def killed(spark):
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    spark.range(3).count()

def told(spark):
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGTERM)
    while True:
        spark.range(3).count()

def filling(spark):
    spark.sql("SELECT length(repeat('x', 1000000000 + id)) FROM range(1)").collect()

def collecting(spark):
    "As where each collection frees a little: most of the time goes into pauses."
    jvm, java = spark._jvm, getattr(spark._jvm, "java")
    pools = java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    (old,) = (pool for pool in pools if "Old" in pool.getName())
    kept = java.util.ArrayList()
    while old.getCollectionUsage().getUsed() < 0.92 * old.getUsage().getMax():
        kept.add(spark.sparkContext._gateway.new_array(jvm.byte, 16 << 20))
        jvm.System.gc()
    while True:
        jvm.System.gc()

def pausing(spark):
    "A heap with room: what has to wait for collections goes on all the same."
    until = time.monotonic() + 3 * driver.PAUSES_S
    while time.monotonic() < until:
        spark._jvm.System.gc()
    sys.exit(spark.range(3).count())

def run(context, log):
    globals()[sys.argv[1]](context.session())

job.SINKS = {"lakehouse": run}
settings = Settings(
    source={}, capture={"topic.prefix": "p"}, kafka={"bootstrap.servers": "nowhere"},
    lakehouse={"path": "/nowhere"}, spark={"spark.driver.memory": "600m"},
)
with job.Jobs(settings, "lakehouse") as jobs:
    code = jobs.run()
sys.exit(code)
"""


def ended(way: str) -> "subprocess.CompletedProcess[str]":
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, "-c", RUN, way]
    done = subprocess.run(
        command, cwd=root, check=False, capture_output=True, text=True, timeout=240
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.proof
def test_a_jvm_that_is_killed_is_told_in_one_line() -> None:
    done = ended("killed")
    assert done.returncode == ExitCode.SINK_UNREACHABLE, done.stderr
    assert "Spark's JVM was killed during the run" in done.stdout


@pytest.mark.proof
@pytest.mark.parametrize("way", ["filling", "collecting"])
def test_a_jvm_out_of_memory_is_told_by_its_setting(way: str) -> None:
    """Also one that throws no error, and only collects garbage: for seconds here, not a minute."""
    done = ended(way)
    assert done.returncode == ExitCode.MEMORY, done.stdout + done.stderr
    assert "out of memory (spark.driver.memory = 600m)" in done.stdout


@pytest.mark.proof
def test_a_jvm_that_collects_a_lot_and_has_room_isnt_ended() -> None:
    done = ended("pausing")
    assert done.returncode == 3, done.stdout + done.stderr
    assert not done.stdout


@pytest.mark.proof
def test_a_jvm_that_was_told_to_end_isnt_told_as_out_of_memory() -> None:
    """As by a supervisor that tells all processes of a service."""
    done = ended("told")
    assert done.returncode == ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "ended Spark's JVM during the run" in done.stdout
    assert "memory" not in done.stdout


@pytest.mark.proof
def test_less_memory_than_spark_itself_needs_is_a_wrong_setting() -> None:
    program = (
        "from sinks.spark.session import open_session as o; o({'spark.driver.memory': '60m'}, 'x')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=240
    )
    said = "spark.driver.memory = 60m is less than Spark needs: 450 MiB"
    assert f"cdc.errors.ConfigError: {said}" in done.stderr
