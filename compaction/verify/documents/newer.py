"""A table's log between an index's cut and the instant → changes of its documents.

A normal run reads it, and each key's newest state is kept in a file, by document. Applied to a
document, it gives a merge's result: the newer version wins, and a value that the log lacks comes
from the document. If both have the same version, the log's wins.
"""

import json
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from cdc.log.offsets import LogState
from cdc.settings import SearchSettings
from compaction.verify.documents.point_in_time import Hit
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import LastCheck, Rows, RunOutcome
from sinks.run.target import Forgotten, Target, Wanted
from sinks.run.topics import ReadChanges
from sinks.run.wanted import CapturedTables, wanted_in_search
from sinks.search.apply import shape_of
from sinks.search.bulk import Action
from sinks.search.documents import POSITION_FIELD, document_id
from sinks.search.ended import EndedDocuments, ended_documents
from sinks.search.executors import completed
from sinks.search.rows import documents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE: Final = 500
_TABLES: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE newer (
    id TEXT PRIMARY KEY, version INTEGER, source TEXT, absent TEXT, filled TEXT, met INTEGER
) WITHOUT ROWID;
CREATE TABLE refused (id TEXT PRIMARY KEY, version INTEGER, source TEXT) WITHOUT ROWID;
"""


class NewerDocuments:
    """The changes of one index's documents, and its dead letters, in a file."""

    def __init__(self, file: Path) -> None:
        # SQLite bounds the memory. One thread at a time has the connection.
        self._file = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._file.executescript(_TABLES)
        self._lock = threading.Lock()
        self._truncated = ""
        self._ended = list[EndedDocuments]()
        self._has_any = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def refuse(self, dead_letters: Iterable[Mapping[str, Any]]) -> None:
        """Record documents that the server has refused."""
        rows = ((each["document"], each["version"], each["source"]) for each in dead_letters)
        self._write("INSERT OR REPLACE INTO refused VALUES (?, ?, ?)", rows)

    def end(self, table: TablePlan, ended: Iterable[EndedDocuments]) -> None:
        """Record which rows end according to the plan."""
        self._truncated = str(table.truncated or "")
        self._ended = [*ended]

    def put(self, actions: Iterable[Action]) -> None:
        """Record the newest states of documents."""
        rows = (
            (
                action.id,
                action.version,
                None if action.source is None else action.source.decode(),
                json.dumps(action.absent),
                json.dumps(action.filled),
            )
            for action in actions
        )
        self._write("INSERT OR REPLACE INTO newer VALUES (?, ?, ?, ?, ?, 0)", rows)

    def applied(self, hits: Sequence[Hit]) -> Iterator[Hit]:
        """Yield documents with the changes applied."""
        if not self._has_any:
            yield from (hit for hit in hits if not self._is_over(hit["_source"]))
            return
        ids = [hit["_id"] for hit in hits]
        with self._lock:
            newer, refused = self._newer(ids), self._refused_of(ids)
            met = [(each,) for each in newer]
            self._file.executemany("UPDATE newer SET met = 1 WHERE id = ?", met)
        for hit in hits:
            stored: Hit | None = None if self._is_over(hit["_source"]) else hit
            action = newer.get(hit["_id"])
            if action is None or (stored is not None and action.version < hit["_version"]):
                if stored is not None:
                    yield stored
            elif action.source is not None:
                yield _made(action, stored and stored["_source"], refused.get(action.id))

    def others(self) -> Iterator[Hit]:
        """Yield new documents, once ``applied`` has had all stored ones."""
        last = ""
        while True:
            with self._lock:
                page = self._file.execute(
                    "SELECT id FROM newer WHERE id > ? AND met = 0 ORDER BY id LIMIT ?",
                    (last, _PAGE),
                ).fetchall()
                ids = [row[0] for row in page]
                newer, refused = self._newer(ids), self._refused_of(ids)
            if not ids:
                return
            for action in newer.values():
                if action.source is not None:
                    yield _made(action, None, refused.get(action.id))
            last = ids[-1]

    def refused(self) -> Iterator[Hit]:
        """Yield documents that were refused and have no later change."""
        with self._lock:
            rows = self._file.execute(
                "SELECT id, version, source FROM refused WHERE NOT EXISTS (SELECT 1 FROM newer"
                " WHERE newer.id = refused.id AND newer.version >= refused.version)"
            ).fetchall()
        for id_, version, source in rows:
            yield {"_id": id_, "_version": version, "_source": json.loads(source)}

    def _is_over(self, document: Mapping[str, Any]) -> bool:
        position = str(document.get(POSITION_FIELD, ""))
        if self._truncated and position <= self._truncated:
            return True
        return any(ended.holds(document) for ended in self._ended)

    def _newer(self, ids: Sequence[str]) -> dict[str, Action]:
        rows = self._of("SELECT id, version, source, absent, filled FROM newer", ids)
        return {
            id_: Action(
                id_,
                version,
                None if source is None else source.encode(),
                tuple(json.loads(absent)),
                tuple(json.loads(filled)),
            )
            for id_, version, source, absent, filled in rows
        }

    def _refused_of(self, ids: Sequence[str]) -> dict[str, tuple[int, dict[str, Any]]]:
        rows = self._of("SELECT id, version, source FROM refused", ids)
        return {id_: (version, json.loads(source)) for id_, version, source in rows}

    def _of(self, select: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(ids), _PAGE):
            some = ids[start : start + _PAGE]
            places = ", ".join("?" * len(some))
            yield from self._file.execute(f"{select} WHERE id IN ({places})", some)

    def _write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._lock, closing(self._file.cursor()) as cursor:
            cursor.execute("BEGIN")
            cursor.executemany(statement, rows)
            self._has_any = self._has_any or cursor.rowcount > 0
            cursor.execute("COMMIT")


def _made(
    action: Action, stored: dict[str, Any] | None, refused: tuple[int, dict[str, Any]] | None
) -> Hit:
    """Return the document of a change, with missing values from the one before."""
    if refused is not None and refused[0] <= action.version:
        stored = refused[1]
    if action.absent or action.filled:
        source, _ = completed(action, stored)
    else:
        source = json.loads(action.source or b"{}")
    return {"_id": action.id, "_version": action.version, "_source": source}


class NewerTarget(Target):
    """Indexes at their own cuts, as a target of a run that writes to no server."""

    sink: ClassVar[str] = "search"

    def __init__(
        self,
        search: SearchSettings,
        standing: RunPlan,
        checked: LastCheck,
        newer: Mapping[str, NewerDocuments],
    ) -> None:
        self.plans = _KeptPlans(standing, checked)
        self._search = search
        self._newer = newer

    def wanted(self, state: LogState, begun: Collection[str]) -> Wanted:
        """Return the tables whose indexes are compared."""
        del begun
        captured = CapturedTables.of(state.tables.keys(), state.newest_schemas)
        wanted = wanted_in_search(self._search, captured)
        return Wanted({name: table for name, table in wanted.items() if name in self._newer})

    def is_standing(self, name: str, table: TablePlan, state: LogState) -> bool:
        """Return True, as the indexes were checked before."""
        del name, table, state
        return True

    def behind_gap(self, name: str, table: TablePlan, forgotten: Forgotten) -> TablePlan | None:
        """Return None, as changes that the log no longer has can't be compared."""
        del name, table, forgotten
        return None

    def apply(self, spark: "SparkSession", name: str, plan: RunPlan, read: ReadChanges) -> Rows:
        """Keep the newest state of each document."""
        table, newer = plan.tables[name], self._newer[name]
        if not table.commits:
            return Rows()
        with read() as changes:
            shape = shape_of(changes.versions, self._search)
            newer.end(table, [ended_documents(spark, end, shape) for end in table.ended])
            if table.events:
                with changes.newest(shape) as newest:
                    rows = documents(newest.all(), shape).toLocalIterator()
                    newer.put(
                        Action(
                            document_id(row["key"]),
                            row["version"],
                            None if row["source"] is None else row["source"].encode(),
                            tuple(row["absent"]),
                            tuple(row["filled"]),
                        )
                        for row in rows
                    )
        return Rows()


class _KeptPlans:
    """The plan of one run, in memory."""

    def __init__(self, standing: RunPlan, checked: LastCheck) -> None:
        self._plan = standing
        self._outcome: RunOutcome | None = RunOutcome(run=standing.run, ts_ms=0, failed={})
        self._checked = checked

    def last(self) -> RunPlan | None:
        return self._plan

    def outcome(self, plan: RunPlan) -> RunOutcome | None:
        del plan
        return self._outcome

    def start(self, plan: RunPlan) -> None:
        self._plan, self._outcome = plan, None

    def finish(self, outcome: RunOutcome) -> None:
        self._outcome = outcome

    def checked(self) -> LastCheck:
        return self._checked

    def check(self, check: LastCheck) -> None:
        self._checked = check
