"""Settings → both servers, as one start has them: connections, slot lease, the log's progress.

What captures (session.py) and what begins a new epoch (start.py) go through the same steps.
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
    """The source and the log; the stack closes what is opened."""

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
        """``in_progress``: large transactions are to be sent before they have ended."""
        self.settings = settings
        self._capture = settings.capture
        self.stack = stack
        self.stop = stop
        self.health = health
        self.refusals = refusals
        self._in_progress = in_progress
        self.has_waited = False
        """Whether this start has stood by: then all that a start checks at first was right."""
        self._crash: CrashNotice | None = None
        self.progress: Progress | None = None

    def connect(self) -> None:
        """Connect to the source, without taking anything."""
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
        """Look at both sides, and take the right to the slot: a standby waits here."""
        self.connect()
        self.check_tables()
        self.topics.check_reachable()
        self.lease.lock()
        self.identify()

    def check_tables(self) -> list[TableDescription]:
        """The captured tables, checked for everything that can be wrong on PostgreSQL's side."""
        described = self.describe(captured_tables(self.sql, self._capture))
        source, capture = self.settings.source, self._capture
        preflight.check(self.sql, source, capture, described, partial(self._spared, described))
        return described

    def _spared(self, described: Sequence[TableDescription]) -> list[TableName]:
        """The tables whose own trouble ends nothing: the log goes on without."""
        has_begun = self.has_begun()
        return [table.name for table in described if has_begun and self.is_spared(table)]

    def has_begun(self) -> bool:
        """Whether there was a start before: tables are no more all that there is to this one.

        Raises LogError where waiting mends that nobody can tell.
        """
        try:
            return self._has_begun()
        except LogError as error:
            if error.retry:
                raise
            return False  # what is wrong with the log isn't said yet

    def _has_begun(self) -> bool:
        if self.is_first_start:  # it may have begun while this one stood by
            self.read_progress()
        return not self.is_first_start

    @property
    def is_first_start(self) -> bool:
        """Whether the log, as it was read last, has no slot yet."""
        return self.progress is None or self.progress.is_first_start

    def is_spared(self, table: TableDescription) -> bool:
        """Whether a table that can't be captured ends no start but the first one.

        It is set aside; or left out, where the publication lacks it.
        """
        return self._capture.lossless or self.is_left_out(table)

    def is_left_out(self, table: TableDescription) -> bool:
        """Whether the publication that Millrace looks after doesn't publish the table (yet)."""
        return self._is_managed and not table.entry

    @property
    def _is_managed(self) -> bool:
        return self._capture.publication_autocreate_mode == "filtered"

    def publish(self, checked: Sequence[TableDescription]) -> list[TableDescription]:
        """Make, extend or check the publication; returns the tables as they are by now.

        Where Millrace has made it, it gets the tables that are new. One that the log has, and that
        isn't published any more, was taken out by somebody. One that is locked isn't returned.
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
        """The tables in the order in which they are read."""
        described = described_tables(self.sql, self._capture, captured)
        return sorted(described, key=lambda table: self._capture.snapshot_rank(str(table.name)))

    def find_slot(self) -> None:
        """Look at the slot; raises where it isn't ours."""
        self.slot = slot.inspect(self.sql, self._capture.slot_name)
        if self.slot is not None:
            slot.verify_ours(self.sql, self.slot)

    def stream_slot(self) -> None:
        """Stream from the slot, if there is one that gives anything."""
        self.find_slot()
        if self.slot is not None and slot.why_lost(self.slot) is None:
            self.lease.stream()

    def open_log(self, described: Sequence[TableDescription]) -> None:
        """Fence off who wrote before, and read how far the log is."""
        self.topics.ensure_state_topics()
        self.writers = self._open_writers(described)
        self.read_progress()

    def read_progress(self) -> None:
        """Read how far the log is."""
        self.progress = last_progress(
            self.settings.kafka,
            progress_topic(self._capture.topic_prefix),
            self._capture.slot_name,
            self.lease.keep_alive,
        )

    def record(self, records: Iterable[Record]) -> None:
        """Write to the log, and wait until it is committed: no stream is to be kept up with."""
        writer = self.writers[0]
        writer.write(records)
        writer.commit()

    @property
    def is_complete(self) -> bool:
        """Whether an earlier start did all that snapshot.mode = initial_only asks for."""
        return is_complete(self._capture, self.progress, self.slot)

    @property
    def has_crashed(self) -> bool:
        """Whether the source has crashed while it streamed to us; waits for its word, a second."""
        return self._crash is not None and self.lease.is_streaming and self._crash.has_come()

    def explained(self, error: UndecodableError) -> PublicationError | GapError:
        """What it means that WAL can't be decoded: another publication was used before, or a gap.

        A slot decodes with the publications of the change's time.
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
        """Take the slot away: nobody is going to stream from it."""
        self.lease.release()
        slot.drop(self.sql, self._capture.slot_name)

    def _waits(self) -> None:
        self.has_waited = True

    def identify(self) -> None:
        """Ask which history the server writes; a standby that is promoted goes by another one."""
        replication = self.lease.connect_replication()
        try:
            self.system = identify(replication)
        finally:
            replication.finish()

    def _open_writers(self, described: Sequence[TableDescription]) -> tuple[LogWriter, LogWriter]:
        """Both are opened before anything is read: what an older one may still do is settled."""
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
    """The same of what was read of both servers."""
    return (
        capture.snapshot_mode == "initial_only"
        and state is None
        and progress is not None
        and progress.phase is Phase.STREAMING
    )


def transactional_id(capture: CaptureSettings) -> str:
    """The one of the first writer; that of the second goes on with ``.2``."""
    return f"millrace-{capture.topic_prefix}-{capture.slot_name}"
