"""The options of one run, beyond the configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cdc.errors import MillraceError
from cdc.records.schema import Column
from cdc.settings import Settings
from sinks.spark.session import SparkProvider

SchemaOf = Callable[[int], str]
"""Id → the schema registry's text of a schema."""
TypesOf = Callable[[], Mapping[str, Mapping[str, Column]]]
"""Topic and column → its description in the source's catalog."""
Report = Callable[[str], None]
"""Takes a line for the user."""
PausedTables = Mapping[str, MillraceError]
"""Derived tables that failed recently and wait for a retry, with their errors."""


def wait_on() -> None:
    """Do nothing while a run waits for brokers, as no caller can interrupt it."""


def forget_nothing() -> None:
    """Do nothing when a sink begins, as no earlier reports exist."""


def say_nothing(_done: int, _tables: int) -> None:
    """Drop a run's progress."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run's own options, and its access to the registry and the source, which no sink knows.

    A run reads about ``records_max`` records at most, and leaves the rest to a later run. Tables of
    ``accepted_gaps`` continue although the log no longer has all of their changes. Those of
    ``accepted_doubts`` count as right although no event has covered all of their rows.
    ``schema_of`` and ``types_of`` read topics that a real Debezium wrote.

    Lakehouse tables in ``rebuilt`` are rewritten, and indexes and views get a new one in their
    place. With ``rebuilds_all``, all lakehouse tables that can be are rewritten. Refused documents
    of ``replayed`` indexes are made again. Captured tables of ``accepted_drops`` count as dropped,
    regardless of how many are missing. ``paused`` tables are left unchanged.
    """

    records_max: int | None = None
    accepted_gaps: frozenset[str] = frozenset()
    schema_of: SchemaOf | None = None
    types_of: TypesOf | None = None
    rebuilt: frozenset[str] = frozenset()
    rebuilds_all: bool = False
    replayed: frozenset[str] = frozenset()
    accepted_drops: frozenset[str] = frozenset()
    accepted_doubts: frozenset[str] = frozenset()
    paused: PausedTables = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class RunContext:
    """The configuration, and the callbacks of a run's caller.

    A run calls ``session`` once Spark has work. It calls ``while_waiting`` while brokers don't
    answer, before each table, and if one fails: it may raise to end the run. It calls ``progress``
    with the number of finished tables, and of all tables. It calls ``begins`` if the sink has no
    plan yet: then earlier reports are of a removed one.
    """

    settings: Settings
    session: SparkProvider
    report: Report
    options: RunOptions
    while_waiting: Callable[[], None] = wait_on
    progress: Callable[[int, int], None] = say_nothing
    begins: Callable[[], None] = forget_nothing
