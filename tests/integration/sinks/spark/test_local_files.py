"""Delta's files on this machine: written as by Hadoop, but without child processes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
_CHILDREN_FAULTS: Final = 8
"""Of /proc/PID/stat behind the command: page faults of children that have ended; each has some."""


def test_a_commit_starts_no_process(spark: "SparkSession", tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()

    def faults() -> int:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[_CHILDREN_FAULTS])

    added = []
    for _ in range(5):  # Spark itself removes a session's folder by a process, now and then
        before = faults()
        spark.range(3).write.format("delta").mode("append").save(str(tmp_path / "table"))
        added.append(faults() - before)
    assert 0 in added


def test_files_and_folders_have_hadoops_modes_also_behind_a_link(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Below a folder that gives its group to all that is in it, they give it on."""
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    folder.chmod(0o2775)
    link.symlink_to(folder)
    spark.range(3).write.format("delta").save(str(link / "table"))
    assert spark.read.format("delta").load(str(link / "table")).count() == 3
    made = {path.stat().st_mode & 0o7777 for path in folder.rglob("*") if path.is_file()}
    folders = {path.stat().st_mode & 0o7777 for path in folder.rglob("*") if path.is_dir()}
    assert (made, folders) == ({0o644}, {0o2755})
