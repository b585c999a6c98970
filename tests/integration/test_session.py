"""What a session of our own starts with."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


def test_a_jvm_has_its_classes_from_the_archive_that_setup_made(spark: "SparkSession") -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    assert ".cache/classes.jsa" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
