"""A small run of what merges do -> an archive of the classes that it has loaded: classes.py FILE.

A JVM that starts with the archive has them in memory at once, not from hundreds of jars. The file
is empty where Java can't make one, and then isn't used.
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
"""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import SparkMissingError
from sinks.spark.session import RECORDS_FEW, java_options, open_session, tune

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(file: Path) -> int:
    """Write the archive; it is there once it is whole."""
    made = file.with_suffix(".new")
    made.unlink(missing_ok=True)
    java = f'{java_options({}, 0)} "-XX:ArchiveClassesAtExit={made.absolute()}"'
    try:
        spark = open_session({"spark.driver.extraJavaOptions": java}, "classes")
    except SparkMissingError as error:
        print(f"setup: no archive of classes, merges start without: {error}")
        file.touch()
        return 0
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
    return 0


def _merge(spark: "SparkSession", path: str) -> None:
    """Make a Delta table, change it, and look at it."""
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
    sys.exit(main(Path(sys.argv[1])))
