"""A scene's tables -> a started stream, and the translation that makes records of it."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.scene import PREFIX, Scene
from benchmarks.shapes import Shape
from cdc.capture.wiring import event_rules, pipeline
from cdc.convert.pipeline import no_topic
from cdc.postgres import catalog, slot
from cdc.postgres.captured import captured_tables, ensure_publication
from cdc.postgres.connection import connect, connect_replication
from cdc.postgres.publications import publication_entries
from cdc.postgres.stream import ReplicationStream
from cdc.records.position import Lsn, Position
from cdc.records.state import Phase, Progress, TableState
from cdc.records.topics import data_topic
from cdc.stream.encoding import Actions
from cdc.stream.in_progress import InProgress, spill_directory
from cdc.stream.translation import Limits, Translation
from cdc.tables.tables import Lookups, Tables

LIMITS: Final = Limits(1_000, 16 << 20)
DRAIN: Final = "drain"
"""pg_recvlogical's slot."""


def translated(
    translation: Translation, data: bytearray, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Translate all whole messages; how many events each step made, and where it ended."""
    while True:
        used = translation.feed(data, start, end, LIMITS)
        if used == start and not translation.is_behind:
            return
        yield translation.take().events, used
        start = used


class Captured:
    """What reads a scene's tables without a log."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._settings = scene.pipeline.settings
        self.sql = connect(self._settings.source, purpose="benchmark")
        capture = self._settings.capture
        captured = captured_tables(self.sql, capture)
        ensure_publication(self.sql, capture, captured)
        self.described = catalog.describe(self.sql, captured, capture.publication_name)

    def tables(self) -> Tables:
        """The tables, as if their rows were in a log."""
        states = [
            TableState(
                namespace=table.name.namespace,
                table=table.name.name,
                topic=data_topic(PREFIX, table.name),
                partitions=3,
                cleanup="compact",
                epoch=1,
                phase=Phase.STREAMING,
                snapshot_lsn=Lsn(0),
                oid=table.oid,
                entry=table.entry,
            )
            for table in self.described
        ]
        name = self._settings.capture.publication_name
        lookups = Lookups(
            columns=lambda relation: catalog.describe_relation(self.sql, relation, name),
            entry=lambda oid: publication_entries(self.sql, name, [oid]).get(oid, 0),
            description=lambda _oid, _name: None,
            instant=lambda: (Lsn(0), 0),
            check=lambda _table: None,
            check_readable=lambda _table: None,
            await_visible=lambda _xid: None,
            filled=lambda _oid, _names: (),
        )
        rules, form = event_rules(self._settings), pipeline(self._settings, no_topic)
        return Tables(self._settings, PREFIX, states, (), rules, form, lookups)

    def translation(self) -> Translation:
        """A translation of a stream from its start."""
        tables = self.tables()
        start = Position(1, Lsn(0), 0)
        progress = Progress(
            log="", slot="", system_identifier="", timeline=1, database="", phase=Phase.STREAMING,
            position=start, cut=start, flush_lsn=Lsn(0),
        )  # fmt: skip
        in_progress = InProgress(spill_directory(None), 32 << 20)
        actions = Actions(lambda _: None, lambda _: {}, lambda *_: [])
        return Translation(tables, progress, actions, lambda _: None, in_progress=in_progress)

    def make_slot(self, name: str) -> None:
        """Make a slot that keeps what is written from here on."""
        self.sql.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])

    @contextmanager
    def stream(self, name: str) -> Iterator[ReplicationStream]:
        """Start replication, and drop the slot when it is over."""
        capture = self._settings.capture
        connection = connect_replication(self._settings.source)
        stream = ReplicationStream.start(connection, name, capture.publication_name)
        try:
            yield stream
        finally:
            stream.close()
            slot.drop(self.sql, name)

    def drain_s(self, name: str, end: Lsn) -> float:
        """Seconds that pg_recvlogical takes up to there; its slot is dropped."""
        seconds = drain_s(self._scene, name, end)
        slot.drop(self.sql, name)
        return seconds


def drain_s(scene: Scene, name: str, end: Lsn) -> float:
    """Seconds in which pg_recvlogical reads a slot up to there, and throws all of it away."""
    publication_name = scene.pipeline.settings.capture.publication_name
    # The oldest protocol that has messages: each server knows it, and what it sends is the same.
    words = [
        *(str(scene.postgres.bin("pg_recvlogical")), "--start", f"--slot={name}"),
        *(f"--dbname={scene.source['dbname']}", f"--file={os.devnull}", "--no-loop"),
        *(f"--endpos={end}", "--option=proto_version=2"),
        *(f"--option=publication_names={publication_name}", "--option=messages=true"),
    ]
    started = time.monotonic()
    subprocess.run(words, env=scene.environment(), check=True)
    return time.monotonic() - started


def backlog(scene: Scene, shape: Shape, rows: int, per_transaction: int = 0) -> Lsn:
    """Write rows while nobody reads; returns an LSN behind them, with something behind it."""
    scene.write(shape, rows, per_transaction)
    end = scene.pipeline.wal_end()
    with scene.connect() as connection:
        # pg_recvlogical ends at the first thing beyond its end, so there is one.
        connection.execute("SELECT pg_logical_emit_message(true, 'end', '')")
        connection.execute("CHECKPOINT")
    return end
