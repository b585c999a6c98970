"""A JVM that dies in the middle of a run: one clear message, and an exit code of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from cdc.errors import ExitCode

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("jvms")]

RUN = """
import os, signal, sys
from cdc.settings import Settings
from sinks import job

def run(context, log):
    spark = context.session()
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    spark.range(3).count()

job.SINKS = {"lakehouse": run}
settings = Settings(
    source={}, capture={"topic.prefix": "p"}, kafka={"bootstrap.servers": "nowhere"},
    lakehouse={"path": "/nowhere"},
)
with job.Jobs(settings, "lakehouse") as jobs:
    code = jobs.run()
sys.exit(code)
"""


@pytest.mark.proof
def test_a_jvm_that_is_killed_is_told_in_one_line() -> None:
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(
        command, cwd=root, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == ExitCode.SINK_UNREACHABLE, done.stderr
    assert "Spark's JVM has ended" in done.stdout
    assert "Traceback" not in done.stderr
