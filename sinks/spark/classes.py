"""A small run of a merge's operations → an archive of the classes that it has loaded.

A JVM that starts with the archive has them in memory at once, and doesn't read hundreds of jars.
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
"""

import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cdc.errors import SparkMissingError
from sinks.spark.jars import class_archive, driver_jars
from sinks.spark.session import RECORDS_FEW, java_options, open_session, tune

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive_classes(report: Callable[[str], None]) -> None:
    """Create the archive if possible and missing. Without it, a merge starts later."""
    if find_spec("pyspark") is None:
        report("no class archive: PySpark isn't installed (millrace[spark])")
        return
    if _is_fresh():
        return
    try:
        reason = make_archive()
    except OSError as error:
        reason = f"{class_archive()}: {error.strerror}"
    if reason:
        report(f"no class archive: merges start more slowly: {reason}")
    else:
        report(f"class archive for a faster start: {class_archive()}")


def _is_fresh() -> bool:
    """Whether an archive was made for these jars. Java checks whether it fits.

    An empty file doesn't count: Java may have been installed since.
    """
    try:
        made = class_archive().stat()
    except OSError:
        return False
    newest = max(jar.stat().st_mtime_ns for jar in driver_jars())
    return made.st_size > 0 and made.st_mtime_ns > newest


def make_archive() -> str:
    """Write the archive, which appears once it is whole. Return why there is none, or "".

    If Java can't make one, the file is empty and isn't used, but make needs it.
    """
    file = class_archive()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    made = file.with_suffix(".new")
    made.unlink(missing_ok=True)
    java = f'{java_options({}, 0)} "-XX:ArchiveClassesAtExit={made.absolute()}"'
    try:
        spark = open_session({"spark.driver.extraJavaOptions": java}, "classes")
    except SparkMissingError as error:
        file.touch()
        return str(error)
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 (PySpark has no other way to its JVM)
    for records in (0, RECORDS_FEW):
        session = spark.newSession()
        tune(session, records)
        with tempfile.TemporaryDirectory() as folder:
            _merge(session, f"{folder}/table")
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # which ends it
    gateway.proc.wait()
    made.touch()
    made.replace(file)
    return ""


def _merge(spark: "SparkSession", path: str) -> None:
    """Create a Delta table, change it, and read it."""
    from delta.tables import DeltaTable
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rows = spark.range(2_000).select("id", F.to_json(F.struct("id")).alias("text"))
    rows.write.format("delta").save(path)
    newest = Window.partitionBy("id").orderBy(F.desc("text"))
    changes = spark.range(1_000, 3_000).select("id", F.lit("new").alias("text"))
    ranked = changes.withColumn("rank", F.row_number().over(newest)).where("rank = 1")
    news = ranked.drop("rank").localCheckpoint()
    merge = DeltaTable.forPath(spark, path).alias("old").merge(news.alias("new"), "old.id = new.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    spark.read.format("delta").load(path).groupBy("text").count().collect()


if __name__ == "__main__":
    if reason := make_archive():
        sys.stderr.write(f"setup: no class archive: merges start more slowly: {reason}\n")
