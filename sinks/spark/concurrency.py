"""A driver's cores and memory → how many tables a run works on at the same time."""

from typing import TYPE_CHECKING, Any, Final

from cdc.errors import ConfigError
from sinks.spark.session import RECORDS_FEW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING: Final = "spark.millrace.tablesAtOnce"
_LEAST: Final = 2
"""Half of the time that a small table takes is planning, which uses one core."""
_FEW_BYTES: Final = 128 << 20
_MANY_BYTES: Final = 1 << 30
"""The driver's memory for one table, of few records and of any number."""


def tables_at_once(spark: "SparkSession", records: int | None = None) -> int:
    """Return how many tables a run works on at the same time.

    Each table needs a core of the driver to plan its queries, and memory. ``records`` is about how
    many the run reads. None: unknown. [spark] can set another number. Raises ConfigError if that
    isn't a positive whole number.
    """
    if (given := spark.conf.get(SETTING, None)) is not None:
        return _positive(given)
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    machine = jvm.java.lang.Runtime.getRuntime()
    return by_machine(machine.availableProcessors(), machine.maxMemory(), records)


def by_machine(cores: int, memory_bytes: int, records: int | None) -> int:
    """Return as many tables as there are cores, and memory for.

    A JVM reports a little less memory than it was given.
    """
    of_each = _FEW_BYTES if records is not None and records < RECORDS_FEW else _MANY_BYTES
    return max(_LEAST, min(cores, round(memory_bytes / of_each)))


def _positive(given: str) -> int:
    try:
        number = int(given)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(
            f"{SETTING} = {given!r} isn't a positive whole number",
            where="[spark]",
            remedy="remove it: by default it follows the driver's cores and memory",
        )
    return number
