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
"""Topic and column → what the source's catalog says of it."""
Report = Callable[[str], None]
"""Takes a line for the user."""
PausedTables = Mapping[str, MillraceError]
"""Derived tables that failed a moment ago and wait for a retry, with their errors."""


def wait_on() -> None:
    """What a run does while it waits for brokers, where nobody may end it meanwhile."""


def forget_nothing() -> None:
    """What becomes of reports of a sink that begins, where there are none."""


def say_nothing(_done: int, _tables: int) -> None:
    """What a run says of its progress, where nobody wants to know."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run's own options, and its access to the registry and the source, which no sink knows.

    ``records_max`` is about how many records it reads at most; what is left is a later run's. The
    tables of ``accepted_gaps`` go on although the log has forgotten changes of theirs, those of
    ``accepted_doubts`` count as right although nothing has covered all of their rows. Topics that
    a real Debezium wrote are read by ``schema_of`` and ``types_of``. Lakehouse tables that are to
    be ``rebuilt`` are written as a whole, indexes and views get a new one in their place;
    ``rebuilds_all``: so are all lakehouse tables that can be. Of indexes ``replayed`` the documents
    that were refused are made again. Captured tables of ``accepted_drops`` count as dropped,
    however many are
    missing. Tables that are ``paused`` are left as they are.
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
    """The configuration, and what a run is given by whoever starts it.

    ``session`` is called once there is something for Spark to do; ``while_waiting`` while brokers
    don't answer, before each table, and where one fails: it may raise to give up; ``progress`` when
    so many of so many tables are done; ``begins`` where the sink has no plan yet: earlier reports
    are of one that was removed.
    """

    settings: Settings
    session: SparkProvider
    report: Report
    options: RunOptions
    while_waiting: Callable[[], None] = wait_on
    progress: Callable[[int, int], None] = say_nothing
    begins: Callable[[], None] = forget_nothing
