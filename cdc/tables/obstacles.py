"""Tables, described or arriving → why they can't be captured, and that they are set aside.

A table that is set aside has the reason as its doubt: the stream goes past its changes, so that one
table's trouble ends nothing else. It is read again, replacing all rows, when the obstacle is gone
(snapshots/catalog_check.py). One that the log has nothing of is looked at as new ones are. One of
whose rows no record can be made is read again by the next start of the process, or when asked for:
nothing else tells that the row, or the configuration, is another by now.
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
"""An obstacle lasts that is there for so long, whenever it is looked at (every few seconds)."""
GIVEN_UP: Final = "a record of it can't be written (the next start tries again)"
"""Why the daemon doesn't read such a table again by itself."""
_DEAD_LETTERS: Final = "errors.dead.letter.include.list"


class Obstacles:
    """What keeps tables from being captured."""

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
        """Tables that couldn't be captured when they were looked at last → since when."""

    @property
    def lasting(self) -> set[TableName]:
        """Tables that couldn't be captured whenever they were looked at, for a while."""
        until = time.monotonic() - LASTING_S
        return {name for name, since in self._hindered.items() if since <= until}

    def of(self, table: TableDescription, *, is_readable: bool = False) -> TableRefusedError | None:
        """Why a table can't be captured as it is described; None: it can.

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
            if self._states.is_set_aside(table.name):  # else that is seen when events are made
                self._schemas.check(table)
        except TableRefusedError as error:
            if error.retry:
                raise
            return error
        return None

    def of_all(
        self, tables: Sequence[TableDescription]
    ) -> list[tuple[TableDescription, TableRefusedError | None]]:
        """The same of each; of new ones that would share a topic, the first one can have it."""
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
        """Whether rows of all tables can be read: one question, and one each where not."""
        try:
            if self._settings.lossless:
                self._check_readable([*filter(self._is_to_read, tables)])
        except TableRefusedError:
            return False
        return True

    def is_readable(self, table: TableDescription) -> bool:
        """Whether a read that nothing depends on can be made of a table; warns where not.

        Where no table is set aside (not ``lossless``), the read itself ends with that.
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
        """Why a table's rows couldn't be read: where a right lacks, with the GRANT that helps."""
        if table is not None and isinstance(error, SourcePrivilegeError):
            try:
                self._check_readable([table])
            except TableRefusedError as refused:
                return refused
        return error

    def is_ahead(self, table: TableDescription) -> bool:
        """Whether a followed table got its obstacle behind what the log has of it.

        Then the stream comes to it, or the catalog check: what was changed before that is taken.
        Under REPLICA IDENTITY FULL the stream says nothing of a key that is gone.
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
        """Raise TableRefusedError where changes of a table don't have the key that they need.

        ``identity`` names the columns that old rows come with.
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
        """Note why a table's changes can't be taken from here on; nothing where that is known.

        ``error`` is one of ROW_ERRORS. Raises it where starting over mends it, and where Debezium
        would end (not ``lossless``).
        """
        if error.retry or not self._settings.lossless:
            raise error
        is_of_row = not isinstance(error, TableRefusedError)
        is_known = self.is_given_up(name) if is_of_row else self._states.is_set_aside(name)
        if not is_known:
            _warn(name, error)
        return self._reads.set_aside(name, reason_of(error), GIVEN_UP if is_of_row else "")

    def is_given_up(self, name: TableName) -> bool:
        """Whether a table waits for the next start, or for somebody who asks for it."""
        state = self._states.get(name)
        return state is not None and state.doubt is not None and state.doubt.refused == GIVEN_UP

    def try_again(self) -> list[Record]:
        """Have tables that were given up read again."""
        given_up = [state for state in self._states.values() if self.is_given_up(state.name)]
        records = list[Record]()
        for state in given_up:
            again = {"doubt": _tried_again(state.doubt)}
            records += self._states.put(state.model_copy(update=again))
        return records

    def refuse(
        self, table: TableDescription, error: TableRefusedError, reached: Position
    ) -> list[Record]:
        """Set a described table aside; the log may have nothing of it."""
        if (state := self._states.get(table.name)) is not None:
            records = self.set_aside(table.name, error)
            if state.is_in_log and not state.oid:  # of an epoch that begins
                now = {"oid": table.oid, "entry": table.entry, "fingerprint": table.fingerprint}
                aside = self._states[table.name].model_copy(update=now)
                records += self._states.put(aside)
            return records
        _warn(table.name, error)
        now_ms = time.time_ns() // 1_000_000
        doubt = Doubt(reason=reason_of(error), since_ms=now_ms, replaces=True, set_aside=True)
        return self._states.refused(table, reached, doubt)

    def leave_out(self, table: TableDescription, reached: Position) -> list[Record]:
        """Tell of a table that isn't published, and that Millrace can't add.

        It is set aside if the log has nothing of it, or nothing in this epoch; of another one the
        catalog check tells that changes are missing. So it is warned of, once, and where no table
        is set aside (not ``lossless``).
        """
        error, state = self.why_left_out(table), self._states.get(table.name)
        if self._settings.lossless and not (state and state.is_in_log and state.oid):
            return self.refuse(table, error, reached)
        if table.name not in self._warned:
            self._warned.add(table.name)
            log.warning(error.what, remedy=error.remedy)
        return []

    def why_left_out(self, table: TableDescription) -> TableRefusedError:
        """What has to be mended before a table is published, or that it isn't."""
        try:
            self._check(table)
        except TableRefusedError as error:
            return error
        return self.of(table) or unpublished(self._settings.publication_name, table.name)

    def _is_to_read(self, table: TableDescription) -> bool:
        """Whether the table is of no use without its rows; its changes alone need no right.

        A read that is under way while it is streamed is tried again by itself.
        """
        state = self._states.get(table.name)
        if state is None or not state.is_in_log or state.is_set_aside:
            return True
        return not (self._states.is_whole(table.name) or table.is_chunked)

    def _check_topic_name(self, table: TableName) -> None:
        """Raise TableRefusedError where the log would mix the table's rows up with another's."""
        prefix = self._settings.topic_prefix
        topic = data_topic(prefix, table)
        alike = kafka_name(topic)
        # A start asks this of each table: what costs least, and tells most apart, comes first.
        for state in self._states.values():
            is_alike = len(state.topic) == len(topic) and kafka_name(state.topic) == alike
            if is_alike and state.is_in_log and state.name != table:
                raise shared_topic(topic, [state.name, table])
        for name in self._states.waiting:
            if name != table and kafka_name(data_topic(prefix, name)) == alike:
                raise shared_topic(topic, [name, table])

    def _check_cleanup(self, table: TableName, key: Collection[str]) -> None:
        """Raise TableRefusedError where the table's topic isn't for records like its own.

        One that was made for a table without a key takes records with one, too.
        """
        state = self._states.get(table)
        if state is not None and state.is_in_log and state.cleanup == "compact" and not key:
            raise TableRefusedError(
                f"table {table} no longer has a key, and its topic refuses records without one",
                remedy="add the key again, or leave the table out (table.exclude.list)",
            )


def reason_of(error: MillraceError) -> str:
    """What is wrong, and what mends it, on one line."""
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
