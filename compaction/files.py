"""A Delta table's log → the number and size of its files, and those worth a rewrite."""

import json
from collections import defaultdict
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from sinks.delta.evolution import has_removed_columns
from sinks.delta.table import DerivedDeltaTable

FILE_BYTES: Final = 128 << 20
"""Size of OPTIMIZE's files: large enough for fast reads, small enough for a merge to skip most."""
SMALL_BYTES: Final = FILE_BYTES // 2
"""A smaller file is combined with others."""
SMALL_FILES_MIN: Final = 8
"""A rewrite of small files pays if it saves this number of files."""
DELETED_SHARE_MIN: Final = 0.1
"""Files also pay if this share of their rows is removed."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's files, those of them that OPTIMIZE would combine, and its rows.

    OPTIMIZE would leave ``saved`` fewer files. ``deleted`` rows are still in files. If it
    ``purges``, values of removed columns may be, too.
    """

    files: int
    bytes: int
    saved: int = 0
    rows: int = 0
    deleted: int = 0
    purges: bool = False

    @property
    def pays(self) -> bool:
        """Whether a rewrite pays."""
        return self.saved >= SMALL_FILES_MIN or self.deleted > self.rows * DELETED_SHARE_MIN


def files_of(target: DerivedDeltaTable) -> TableFiles:
    """Return the files of the version read last, from their statistics in Delta's log.

    A version's checksum lists the files of all but large tables, which takes no Spark job. OPTIMIZE
    keeps partitions separate.
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
    """
    purges = has_removed_columns(target)
    listed = target.checksum().get("allFiles")
    return _of_job(target, purges=purges) if listed is None else _of_list(listed, purges=purges)


def files_left(target: DerivedDeltaTable) -> TableFiles:
    """Return number and size of the files of a table that needs nothing."""
    checksum = target.checksum()
    if not checksum:
        return files_of(target)
    return TableFiles(checksum["numFiles"], checksum["tableSizeBytes"])


def _of_list(files: list[dict[str, Any]], *, purges: bool) -> TableFiles:
    small: defaultdict[str, list[int]] = defaultdict(list)
    rows = deleted = 0
    for file in files:
        if file["size"] < SMALL_BYTES:
            partition = json.dumps(file.get("partitionValues"), sort_keys=True)
            small[partition].append(file["size"])
        rows += json.loads(file.get("stats") or "{}").get("numRecords", 0)
        deleted += (file.get("deletionVector") or {}).get("cardinality", 0)
    saved = sum(_saved(len(sizes), sum(sizes)) for sizes in small.values())
    size = sum(file["size"] for file in files)
    return TableFiles(len(files), size, saved, rows, deleted, purges)


def _saved(small: int, small_bytes: int) -> int:
    return max(0, small - ceil(small_bytes / FILE_BYTES))


def _of_job(target: DerivedDeltaTable, *, purges: bool) -> TableFiles:
    from pyspark.sql import functions as F

    is_small = F.col("size") < SMALL_BYTES
    rows = F.get_json_object("stats", "$.numRecords").cast("bigint")
    partitions = (
        target.files()
        .groupBy(F.to_json("partitionValues"))
        .agg(
            F.count("*").alias("files"),
            F.sum("size").alias("bytes"),
            F.count_if(is_small).alias("small"),
            F.sum(F.when(is_small, F.col("size"))).alias("small_bytes"),
            F.sum(rows).alias("rows"),
            F.sum("deletionVector.cardinality").alias("deleted"),
        )
    )
    made = F.ceil(F.coalesce("small_bytes", F.lit(0)) / FILE_BYTES)
    names = ("files", "bytes", "rows", "deleted")
    totals = partitions.agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names),
        F.coalesce(F.sum(F.greatest(F.col("small") - made, F.lit(0))), F.lit(0)).alias("saved"),
    ).collect()[0]
    return TableFiles(**totals.asDict(), purges=purges)
