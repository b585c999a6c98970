"""What a history or an archive lacks for ever → a property of its Delta table."""

import json
from collections.abc import Sequence
from typing import Final

from pyspark.errors import PySparkException

from cdc.errors import SinkError
from cdc.records.state import Gap
from sinks.delta.evolution import set_properties
from sinks.delta.table import DeltaTarget
from sinks.spark.session import first_line

GAPS_PROPERTY: Final = "millrace.gaps"


def mark_gaps(target: DeltaTarget, gaps: Sequence[Gap]) -> None:
    """Have the table's property list the gaps, oldest first; raises SinkError.

    Nothing is done where it does, so that it may be repeated after a crash.
    """
    text = json.dumps([gap.model_dump(mode="json") for gap in gaps], ensure_ascii=False)
    if not gaps or target.properties().get(GAPS_PROPERTY) == text:
        return
    try:
        set_properties(target, {GAPS_PROPERTY: text})
    except PySparkException as error:
        raise SinkError(
            f"the table's gaps can't be marked: {first_line(error)}",
            where=target.name,
            remedy="its rows are up to date; the next run tries again",
        ) from None
