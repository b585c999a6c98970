"""Settings → both servers as one start uses them: connections, slot lease, the log's progress.

The session (session.py) and a new epoch (start.py) take the same steps.
docs/decisions/0002-start-and-acknowledge.md has their order.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import psycopg

from cdc.capture.health import Health
from cdc.capture.slot_lease import SlotLease
from cdc.dead_letters.guard import Refusals
from cdc.errors import GapError, LogError, PublicationError, UndecodableError
from cdc.kafka.commits import AtLeastOnceWriter
from cdc.kafka.producer import LogWriter
from cdc.kafka.topics import LogTopics
from cdc.log.state import last_progress, read_all
from cdc.postgres import publishing, slot
from cdc.postgres.captured import (
    captured_tables,
    described_tables,
    ensure_publication,
    publication_exists,
    publication_names,
)
from cdc.postgres.checks import preflight
from cdc.postgres.connection import System, connect, identify
from cdc.postgres.crashes import CrashNotice
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import Phase, Progress, TableState
from cdc.records.topics import progress_topic, table_topic
from cdc.settings import CaptureSettings, Settings


class Servers:
    """The source and the log. The stack closes everything that is opened."""

    sql: psycopg.Connection
    lease: SlotLease
    system: System
    topics: LogTopics
    slot: slot.SlotState | None
    writers: tuple[LogWriter, LogWriter]

    def __init__(
        self,
        settings: Settings,
        stack: ExitStack,
        stop: threading.Event,
        health: Health,
        *,
        refusals: Refusals,
        in_progress: bool,
    ) -> None:
        """``in_progress``: PostgreSQL sends large transactions before they end."""
        self.settings = settings
        self._capture = settings.capture
        self.stack = stack
        self.stop = stop
        self.health = health
        self.refusals = refusals
        self._in_progress = in_progress
        self.has_waited = False
        """Whether this start has waited as a standby. The checks before the wait succeeded then."""
        self._crash: CrashNotice | None = None
        self.progress: Progress | None = None

    def connect(self) -> None:
        """Connect to the source, without taking the lock or the slot."""
        self.sql = self.stack.enter_context(connect(self.settings.source, purpose="control"))
        self._crash = CrashNotice(self.sql)
        self.lease = SlotLease(
            self.settings,
            self.sql,
            self.stack,
            self.stop,
            self.health,
            in_progress=self._in_progress,
            on_wait=self._waits,
        )
        self.topics = LogTopics(self.settings, self.lease.keep_alive)

    def take_lock(self) -> None:
        """Check both sides, and take the right to the slot. A standby waits here."""
        self.connect()
        self.check_tables()
        self.topics.check_reachable()
        self.lease.lock()
        self.identify()

    def check_tables(self) -> list[TableDescription]:
        """Return the captured tables, after every check on PostgreSQL's side."""
        described = self.describe(captured_tables(self.sql, self._capture))
        source, capture = self.settings.source, self._capture
        preflight.check(self.sql, source, capture, described, partial(self._spared, described))
        return described

    def _spared(self, described: Sequence[TableDescription]) -> list[TableName]:
        """The tables whose own obstacles don't end the start. The log continues without them."""
        has_begun = self.has_begun()
        return [table.name for table in described if has_begun and self.is_spared(table)]

    def has_begun(self) -> bool:
        """Whether an earlier start exists. Then a table's obstacle may leave the others running.

        Raise LogError if the log doesn't answer now, but may later.
        """
        try:
            return self._has_begun()
        except LogError as error:
            if error.retry:
                raise
            return False  # a later check reports what is wrong with the log

    def _has_begun(self) -> bool:
        if self.is_first_start:  # another daemon may have begun while this one waited
            self.read_progress()
        return not self.is_first_start

    @property
    def is_first_start(self) -> bool:
        """Whether the log, as last read, has no slot yet."""
        return self.progress is None or self.progress.is_first_start

    def is_spared(self, table: TableDescription) -> bool:
        """Whether an obstacle of this table ends only the first start.

        The table is set aside, or left out if the publication lacks it.
        """
        return self._capture.lossless or self.is_left_out(table)

    def is_left_out(self, table: TableDescription) -> bool:
        """Whether Millrace manages the publication, and it doesn't publish the table (yet)."""
        return self._is_managed and not table.entry

    @property
    def _is_managed(self) -> bool:
        return self._capture.publication_autocreate_mode == "filtered"

    def publish(self, checked: Sequence[TableDescription]) -> list[TableDescription]:
        """Create, extend or check the publication, and return the tables as they are now.

        Add new tables if Millrace has created the publication. If the log has a table that isn't
        published any longer, a user has removed it. Locked tables aren't returned.
        """
        captured = [CapturedTable(table.oid, table.name) for table in checked]
        name, is_managed = self._capture.publication_name, self._is_managed
        if is_managed and not publication_exists(self.sql, name) and self.has_begun():
            publishing.create(self.sql, self._capture, checked)
        locked = set[int]()
        if addable := publishing.addable(self.sql, self._capture, captured):
            new = publishing.unknown(addable, self._states())
            locked = publishing.add(self.sql, self._capture, new, {})
        ensure_publication(self.sql, self._capture, captured, self.has_begun)
        return self.describe([table for table in captured if table.oid not in locked])

    def _states(self) -> list[TableState]:
        if not self._has_begun():
            return []
        topic, keep_alive = table_topic(self._capture.topic_prefix), self.lease.keep_alive
        return read_all(self.settings.kafka, topic, TableState, keep_alive)

    def describe(self, captured: Sequence[CapturedTable]) -> list[TableDescription]:
        """Return the tables, in the order of reading."""
        described = described_tables(self.sql, self._capture, captured)
        return sorted(described, key=lambda table: self._capture.snapshot_rank(str(table.name)))

    def find_slot(self) -> None:
        """Inspect the slot. Raise if it isn't ours."""
        self.slot = slot.inspect(self.sql, self._capture.slot_name)
        if self.slot is not None:
            slot.verify_ours(self.sql, self.slot)

    def stream_slot(self) -> None:
        """Stream from the slot if it exists and isn't lost."""
        self.find_slot()
        if self.slot is not None and slot.why_lost(self.slot) is None:
            self.lease.stream()

    def open_log(self, described: Sequence[TableDescription]) -> None:
        """Fence off earlier writers, and read the log's progress."""
        self.topics.ensure_state_topics()
        self.writers = self._open_writers(described)
        self.read_progress()

    def read_progress(self) -> None:
        """Read the log's progress."""
        self.progress = last_progress(
            self.settings.kafka,
            progress_topic(self._capture.topic_prefix),
            self._capture.slot_name,
            self.lease.keep_alive,
        )

    def record(self, records: Iterable[Record]) -> None:
        """Write to the log, and wait for the commit. Used where no stream waits."""
        writer = self.writers[0]
        writer.write(records)
        writer.commit()

    @property
    def is_complete(self) -> bool:
        """Whether an earlier start did everything that snapshot.mode = initial_only asks for."""
        return is_complete(self._capture, self.progress, self.slot)

    @property
    def has_crashed(self) -> bool:
        """Whether the source crashed while it streamed to us. Waits up to a second."""
        return self._crash is not None and self.lease.is_streaming and self._crash.has_come()

    def explained(self, error: UndecodableError) -> PublicationError | GapError:
        """Explain WAL that can't be decoded: by another publication before, or by a gap.

        A slot decodes a change with the publications of the change's time.
        """
        name = self._capture.publication_name
        if not publication_exists(self.sql, name):
            return error
        fingerprints = (state.fingerprint for state in self._states())
        oids = {each.publication.oid for each in fingerprints if each is not None}
        before = [each for each in publication_names(self.sql, oids) if each != name]
        if before:
            return PublicationError(
                f"the log was captured with publication {before[0]}: publication {name} is a"
                " different one and can't decode WAL that is older than itself",
                where=error.where,
                remedy=f"set publication.name = {before[0]} again; or, {slot.NEW_EPOCH}",
            )
        return GapError(
            f"publication {name} was dropped and created again, or publication.name was changed:"
            " WAL that is older than this publication can't be decoded",
            where=error.where,
            remedy=f"if publication.name was changed, restore the old name; {slot.NEW_EPOCH}",
        )

    def end_slot(self) -> None:
        """Drop the slot, as nothing will stream from it."""
        self.lease.release()
        slot.drop(self.sql, self._capture.slot_name)

    def _waits(self) -> None:
        self.has_waited = True

    def identify(self) -> None:
        """Ask for the server's timeline. A promoted standby continues on another one."""
        replication = self.lease.connect_replication()
        try:
            self.system = identify(replication)
        finally:
            replication.finish()

    def _open_writers(self, described: Sequence[TableDescription]) -> tuple[LogWriter, LogWriter]:
        """Open both writers before reading: this settles what an older writer may still do."""
        options = self.topics.writer_options(described, fits=self.refusals.has_any)
        name = transactional_id(self._capture)
        return self._open_writer(name, options), self._open_writer(f"{name}.2", options)

    def _open_writer(self, transactional_id: str, options: Mapping[str, str]) -> LogWriter:
        exactly, suspects = self.settings.log.delivery == "exactly_once", self.refusals.suspects
        kind = LogWriter if exactly else AtLeastOnceWriter
        writer = kind(options, transactional_id, self.lease.keep_alive, suspects)
        self.stack.callback(writer.close)
        writer.open()
        return writer


def is_complete(
    capture: CaptureSettings, progress: Progress | None, state: slot.SlotState | None
) -> bool:
    """Whether the states of both servers, read before, show a complete initial_only snapshot."""
    return (
        capture.snapshot_mode == "initial_only"
        and state is None
        and progress is not None
        and progress.phase is Phase.STREAMING
    )


def transactional_id(capture: CaptureSettings) -> str:
    """Return the first writer's transactional id. The second one's has ``.2`` appended."""
    return f"millrace-{capture.topic_prefix}-{capture.slot_name}"
