"""What a session of our own starts with."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sinks.spark.session import _CLASSES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


def test_a_jvm_has_its_classes_from_the_archive_that_setup_made(spark: "SparkSession") -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    if not _CLASSES.stat().st_size:
        pytest.skip("this Java makes no archive")
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    assert str(_CLASSES) in maps, "another Java than the archive's? Remove it, and: make setup"
