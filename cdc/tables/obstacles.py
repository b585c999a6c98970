"""Tables, described or arriving → why they can't be captured, and the records that set them aside.

A table that is set aside has the reason as its doubt. The stream skips its changes, so that one
table's problem ends nothing else. When the obstacle is gone, the table is read again, and the read
replaces all rows (snapshots/catalog_check.py). A table without anything in the log is checked like
a new one. If a row can't become a record, the next start of the process reads the table again, or a
request does: nothing else shows that the row, or the configuration, has changed.
"""

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from cdc.errors import MillraceError, SourcePrivilegeError, TableRefusedError
from cdc.lines import Lines
from cdc.postgres.captured import unpublished
from cdc.postgres.checks.preflight import shared_topic, unreadable_column
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import alter_identity
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName
from cdc.records.state import Doubt
from cdc.records.topics import data_topic, kafka_name
from cdc.settings import CaptureSettings
from cdc.tables.reads import TableReads
from cdc.tables.schemas import SchemaVersions
from cdc.tables.states import TableStates
from cdc.wal.messages import ReplicaIdentity

log = structlog.get_logger()
LASTING_S: Final = 10.0
"""How long an obstacle must exist, at every check (every few seconds), to be a lasting one."""
GIVEN_UP: Final = "a record of it can't be written (the next start tries again)"
"""Why the daemon doesn't read such a table again by itself."""
_DEAD_LETTERS: Final = "errors.dead.letter.include.list"


class Obstacles:
    """The obstacles to the capture of tables."""

    def __init__(
        self,
        settings: CaptureSettings,
        states: TableStates,
        reads: TableReads,
        schemas: SchemaVersions,
        check: Callable[[TableDescription], None],
        check_readable: Callable[[Sequence[TableDescription]], None],
    ) -> None:
        """The checks are those of Lookups."""
        self._settings = settings
        self._states = states
        self._reads = reads
        self._schemas = schemas
        self._check = check
        self._check_readable = check_readable
        self._warned = set[TableName]()
        self._hindered: dict[TableName, float] = {}
        """Tables that couldn't be captured at their last check → since when."""

    @property
    def lasting(self) -> set[TableName]:
        """The tables that couldn't be captured at any check for a while."""
        until = time.monotonic() - LASTING_S
        return {name for name, since in self._hindered.items() if since <= until}

    def of(self, table: TableDescription, *, is_readable: bool = False) -> TableRefusedError | None:
        """Return why a table can't be captured as it is described. None: it can.

        ``is_readable``: its rows can surely be read.
        """
        if (error := self._of(table, is_readable=is_readable)) is None:
            self._hindered.pop(table.name, None)
        else:
            self._hindered.setdefault(table.name, time.monotonic())
        return error

    def _of(self, table: TableDescription, *, is_readable: bool) -> TableRefusedError | None:
        if not self._settings.lossless:
            return None
        try:
            self._check_topic_name(table.name)
            key = self._states.key(table.columns, table.name, table.replica_identity)
            self._check_cleanup(table.name, key)
            self._check(table)
            if not is_readable and self._is_to_read(table):
                self._check_readable([table])
            if self._states.is_set_aside(table.name):  # otherwise, making events shows it
                self._schemas.check(table)
        except TableRefusedError as error:
            if error.retry:
                raise
            return error
        return None

    def of_all(
        self, tables: Sequence[TableDescription]
    ) -> list[tuple[TableDescription, TableRefusedError | None]]:
        """Return each table's obstacle. If new tables would share a topic, the first gets it."""
        prefix, first = self._settings.topic_prefix, dict[str, TableName]()
        obstacles = list[tuple[TableDescription, TableRefusedError | None]]()
        is_readable = self._are_readable(tables)
        for table in tables:
            error = self.of(table, is_readable=is_readable)
            topic = data_topic(prefix, table.name)
            if error is None and self._settings.lossless:
                owner = first.setdefault(kafka_name(topic), table.name)
                error = shared_topic(topic, [owner, table.name]) if owner != table.name else None
            obstacles.append((table, error))
        return obstacles

    def _are_readable(self, tables: Sequence[TableDescription]) -> bool:
        """Whether rows of all tables can be read, by one question. If not, each is asked for."""
        try:
            if self._settings.lossless:
                self._check_readable([*filter(self._is_to_read, tables)])
        except TableRefusedError:
            return False
        return True

    def is_readable(self, table: TableDescription) -> bool:
        """Whether a table can be read, for a read that nothing depends on. Warn if it can't.

        If no table is ever set aside (not ``lossless``), the read itself ends with the error.
        """
        try:
            if self._settings.lossless:
                self._check_readable([table])
        except TableRefusedError as error:
            what = "a table isn't read again: its changes alone need no right"
            log.warning(what, reason=error.what, remedy=error.remedy)
            return False
        return True

    def explained(self, error: MillraceError, table: TableDescription | None) -> MillraceError:
        """Return why a table's rows couldn't be read. For a missing right, it has the GRANT."""
        if table is not None and isinstance(error, SourcePrivilegeError):
            try:
                self._check_readable([table])
            except TableRefusedError as refused:
                return refused
        return error

    def is_ahead(self, table: TableDescription) -> bool:
        """Whether a followed table got its obstacle after the log's state of it.

        Then the stream, or the catalog check, reaches it, and earlier changes are captured. Under
        REPLICA IDENTITY FULL the stream doesn't show that a key is gone.
        """
        state = self._states.get(table.name)
        if state is None or not self._states.is_whole(table.name) or state.oid != table.oid:
            return False
        before, now = state.fingerprint, table.fingerprint
        if before is None or now is None or state.doubt is not None or state.requests:
            return False
        return before.identity[:1] != "f" and before.identity != now.identity

    def check_key(
        self,
        table: TableName,
        columns: tuple[Column, ...],
        replica_identity: ReplicaIdentity,
        identity: Collection[str],
    ) -> None:
        """Raise TableRefusedError if changes of a table lack the key that they need.

        ``identity`` names the columns that old rows have.
        """
        if (error := unreadable_column(table, columns)) is not None:
            raise error
        if not self._settings.lossless:
            return
        key = self._states.key(columns, table, replica_identity)
        self._check_cleanup(table, key)
        if replica_identity != "f" and not (identity and key <= set(identity)):
            raise TableRefusedError(
                f"the replica identity of table {table} doesn't contain its key: a change doesn't"
                " identify its row",
                remedy=Lines(
                    f"let its owner run{alter_identity([table], 'DEFAULT' if key else 'FULL')}"
                ),
            )

    def set_aside(self, name: TableName, error: MillraceError) -> list[Record]:
        """Record why a table's changes can't be captured from here on. Do nothing if it is known.

        ``error`` is one of ROW_ERRORS. Raise it if starting again solves it, or if Debezium would
        end (not ``lossless``).
        """
        if error.retry or not self._settings.lossless:
            raise error
        is_of_row = not isinstance(error, TableRefusedError)
        is_known = self.is_given_up(name) if is_of_row else self._states.is_set_aside(name)
        if not is_known:
            _warn(name, error)
        return self._reads.set_aside(name, reason_of(error), GIVEN_UP if is_of_row else "")

    def is_given_up(self, name: TableName) -> bool:
        """Whether a table waits for the next start, or for a request."""
        state = self._states.get(name)
        return state is not None and state.doubt is not None and state.doubt.refused == GIVEN_UP

    def try_again(self) -> list[Record]:
        """Have abandoned tables read again."""
        given_up = [state for state in self._states.values() if self.is_given_up(state.name)]
        records = list[Record]()
        for state in given_up:
            again = {"doubt": _tried_again(state.doubt)}
            records += self._states.put(state.model_copy(update=again))
        return records

    def refuse(
        self, table: TableDescription, error: TableRefusedError, reached: Position
    ) -> list[Record]:
        """Set a described table aside. The log may have nothing of it."""
        if (state := self._states.get(table.name)) is not None:
            records = self.set_aside(table.name, error)
            if state.is_in_log and not state.oid:  # in an epoch that begins
                now = {"oid": table.oid, "entry": table.entry, "fingerprint": table.fingerprint}
                aside = self._states[table.name].model_copy(update=now)
                records += self._states.put(aside)
            return records
        _warn(table.name, error)
        now_ms = time.time_ns() // 1_000_000
        doubt = Doubt(reason=reason_of(error), since_ms=now_ms, replaces=True, set_aside=True)
        return self._states.refused(table, reached, doubt)

    def leave_out(self, table: TableDescription, reached: Position) -> list[Record]:
        """Handle a table that isn't published, and that Millrace can't add.

        If the log has nothing of it, or nothing in this epoch, it is set aside. Otherwise the
        catalog check reports the missing changes, and this only warns, once. The same applies if no
        table is set aside (not ``lossless``).
        """
        error, state = self.why_left_out(table), self._states.get(table.name)
        if self._settings.lossless and not (state and state.is_in_log and state.oid):
            return self.refuse(table, error, reached)
        if table.name not in self._warned:
            self._warned.add(table.name)
            log.warning(error.what, remedy=error.remedy)
        return []

    def why_left_out(self, table: TableDescription) -> TableRefusedError:
        """Return what must be solved before a table is published, or that it isn't published."""
        try:
            self._check(table)
        except TableRefusedError as error:
            return error
        return self.of(table) or unpublished(self._settings.publication_name, table.name)

    def _is_to_read(self, table: TableDescription) -> bool:
        """Whether the table is useless without its rows. Its changes alone need no right.

        A read that is active while streaming is tried again by itself.
        """
        state = self._states.get(table.name)
        if state is None or not state.is_in_log or state.is_set_aside:
            return True
        return not (self._states.is_whole(table.name) or table.is_chunked)

    def _check_topic_name(self, table: TableName) -> None:
        """Raise TableRefusedError if the log would mix the table's rows with another table's."""
        prefix = self._settings.topic_prefix
        topic = data_topic(prefix, table)
        alike = kafka_name(topic)
        # A start asks this for each table: the cheapest and most selective comparison comes first.
        for state in self._states.values():
            is_alike = len(state.topic) == len(topic) and kafka_name(state.topic) == alike
            if is_alike and state.is_in_log and state.name != table:
                raise shared_topic(topic, [state.name, table])
        for name in self._states.waiting:
            if name != table and kafka_name(data_topic(prefix, name)) == alike:
                raise shared_topic(topic, [name, table])

    def _check_cleanup(self, table: TableName, key: Collection[str]) -> None:
        """Raise TableRefusedError if the table's topic isn't for records like its own.

        A topic that was made for a table without a key also accepts records with one.
        """
        state = self._states.get(table)
        if state is not None and state.is_in_log and state.cleanup == "compact" and not key:
            raise TableRefusedError(
                f"table {table} no longer has a key, and its topic refuses records without one",
                remedy="add the key again, or leave the table out (table.exclude.list)",
            )


def reason_of(error: MillraceError) -> str:
    """Return an error's cause and remedy, on one line."""
    return " ".join(": ".join(filter(None, (error.what, error.remedy))).split())


def _tried_again(doubt: Doubt | None) -> Doubt | None:
    return doubt and doubt.model_copy(update={"refused": ""})


def _warn(table: TableName, error: MillraceError) -> None:
    remedy = error.remedy
    if not isinstance(error, TableRefusedError):
        again = (
            f"correct the row, or add the table to {_DEAD_LETTERS}; then run: millrace snapshot"
            f" --reset {shlex.quote(str(table))}; or start again, if doubt.policy,"
            " doubt.reread.bytes.max and the settings of snapshots allow the daemon to read the"
            " table"
        )
        remedy = f"{remedy}; or {again}" if remedy else again
    log.warning(
        "a table is set aside: its changes aren't captured until it can be read again",
        table=str(table),
        reason=error.what,
        where=error.where,
        remedy=remedy,
    )
