"""A source, a log, and the daemon between them: everything happens when a program says so.

Each byte of a program is a step, or says which of several things a step is about.
"""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from cdc.records.state import LeafRead
from cdc.records.topics import TRUNCATE_KEY
from snapshots.copied_rows import Copied
from tests.properties.daemon_model import LIMITS, Event, Log, Stay
from tests.properties.heap_model import (
    NAME,
    Heap,
    Transaction,
    Values,
    copy_text,
)

_DRAIN_MAX: Final = 2_000


class World:
    """The source, the log, and the daemon between them; ``run`` does what a program says."""

    def __init__(self, program: bytes, *, compiled: bool = True) -> None:
        self._bytes = iter(program)
        self.heap = Heap(leaves=1 + self._next() % 2, rows=self._next() % 12)
        self._sent: list[bytes] = []
        self._options = {
            "threads": 1 + self._next() % 2,
            "toast": ("reselect", "absent")[self._next() % 2],
            "compiled": compiled,
        }
        self.log = Log(self.heap.start)
        self._choose = Random(self._next())  # noqa: S311 (repeatable is what it has to be)
        self._next_key = 100
        self.trace: list[str] = []
        self.stay = self._start()
        self._begin_bulk(self._next() % 4)

    @property
    def merged(self) -> bool:
        """Whether events may leave out what earlier ones had."""
        return self._options["toast"] == "absent"

    def run(self) -> None:
        """Do all that the program says; then let everything come to its end."""
        while (step := self._next(-1)) >= 0:
            self._step(step)
        self.finish()

    def finish(self) -> None:
        """Let everything come to its end."""
        for one in list(self.heap.open):
            if one.state == "open":
                self.heap.commit(one)
        self._signal("resume-snapshot", {})
        for _ in range(_DRAIN_MAX):
            for one in list(self.heap.open):
                self.heap.show(one)
            self.stay.stream(1_000)
            self.stay.turn()
            self.stay.threads.step(0)
            self.stay.wait()
            states = self.stay.tables.states.values()
            if not self.stay.threads.waiting and not any(one.requests for one in states):
                break
        else:
            raise AssertionError("chunks are read for ever")
        self.stay.stream(1_000)
        self.stay.commit()

    def _step(self, step: int) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (60, self._change),
            (20, self._commit),
            (8, self._abort),
            (20, self._show),
            (38, self._stream),
            (2, self._refuse),
            (25, self._turn),
            (45, self._job),
            (8, self._fail),
            (8, self._log_commit),
            (4, self._crash),
            (6, self.heap.vacuum),
            (6, self._alter),
            (6, self._ask),
        ]
        for weight, act in kinds:
            if step < weight:
                self.trace.append(act.__name__)
                act()
                return
            step -= weight

    def _next(self, default: int = 0) -> int:
        return next(self._bytes, default)

    def _start(self) -> Stay:
        return Stay(self.heap, self.log, self._sent, self._options)

    def _begin_bulk(self, pages: int) -> None:
        """What a read under the slot's own snapshot has left in the log."""
        tables, heap, position = self.stay.tables, self.heap, self.log.progress.position
        table = heap.table
        self.stay.pending += tables.begin_snapshot(table, position)
        request = tables.states[NAME].initial
        assert request is not None
        if pages:
            tids = (0, pages << 16)
            encoder, states = tables.snapshot_encoder(table, position)
            copied = Copied(encoder, position, position.commit_lsn, 0, extra=1)
            texts = [copy_text(heap.columns, *o) for o in heap.read(0, tids, heap.visibility)]
            rows = bytearray(b"".join(texts))
            copied.feed(rows, 0, len(rows), LIMITS)
            read = LeafRead(leaf=table.leaves[0].oid, file=heap.files[0], ranges=(tids,))
            request = request.model_copy(update={"read": (read,)})
            self.stay.pending += [*states, *copied.take(), tables.advance(NAME, request, 0, 0)]
        self.stay.commit()

    # The source

    def _change(self) -> None:
        """An insert, update or delete in one of some transactions."""
        heap, (what, which, whom) = self.heap, (self._next(), self._next(), self._next())
        if heap.is_locked:
            return
        mine = [one for one in heap.open if one.state == "open"]
        one = mine[which % 3] if which % 3 < len(mine) else heap.begin()
        others = {key for other in heap.open if other is not one for key in other.keys}
        found = sorted(heap.rows().keys() | one.keys)
        mine_now = [v for key in found if key not in others and (v := heap.now(key)) is not None]
        if what < 50 or not mine_now:
            key = self._fresh_key(others, whom)
            heap.insert(one, key)
            return
        version = mine_now[whom % len(mine_now)]
        if what < 90:
            heap.delete(one, version)
        elif what < 120:
            # Without completion nobody has the large value under the new key.
            big = what < 100 or self.merged
            heap.update(one, version, big=big, key=self._fresh_key(others, which))
        else:
            heap.update(one, version, big=what < 140)

    def _fresh_key(self, others: set[str], choice: int) -> str:
        """A key that isn't there: one that was, sometimes."""
        key = str(choice % 12)
        if key in others or self.heap.now(key) is not None:
            self._next_key += 1
            return str(self._next_key)
        return key

    def _of(self, state: str) -> Transaction | None:
        found = [one for one in self.heap.open if one.state == state]
        return found[self._next() % len(found)] if found else None

    def _commit(self) -> None:
        if (one := self._of("open")) is not None:
            self.heap.commit(one)
            if self._next() % 2:
                self.heap.show(one)

    def _abort(self) -> None:
        one = self._of("open")
        if one is not None and not one.locks_all:
            self.heap.abort(one)

    def _show(self) -> None:
        if (one := self._of("committed")) is not None:
            self.heap.show(one)

    def _alter(self) -> None:
        """What takes the whole table for itself."""
        if self.heap.open:
            return
        what = self._next() % 5
        if what == 0:
            self.heap.commit(self.heap.truncate())
        elif what == 1:
            self.heap.add_column()
        elif what == 2:
            self.heap.drop_column()
        else:
            self.heap.rewrite(self._choose)

    # The daemon

    def _stream(self) -> None:
        self.stay.stream(1 + self._next() % 8)

    def _turn(self) -> None:
        self.stay.turn()

    def _job(self) -> None:
        self.stay.threads.step(self._next())

    def _fail(self) -> None:
        self.stay.threads.fail(self._next(), written=bool(self._next() % 2))
        self.stay.wait()

    def _log_commit(self) -> None:
        self.stay.commit()

    def _refuse(self) -> None:
        self.stay.refuses = True

    def _crash(self) -> None:
        self.stay = self._start()

    def _ask(self) -> None:
        what = self._next() % 6
        if what < 3:
            data = {"data-collections": ["public.t"], "reset": what == 0}
            self._signal("execute-snapshot", data)
        else:
            self._signal(("pause-snapshot", "resume-snapshot", "stop-snapshot")[what - 3], {})

    def _signal(self, kind: str, data: dict[str, Any]) -> None:
        text = json.dumps({"id": str(len(self._sent)), "type": kind, "data": data})
        self._sent.append(text.encode())


def in_order(events: list[Event], *, merged: bool) -> dict[str, Values]:
    """What records add up to in the order of their offsets: key → values.

    ``merged``: what a record lacks is as the one before had it.
    """
    rows: dict[str, Values] = {}
    for key, value, _, _ in events:
        if key == TRUNCATE_KEY.decode():
            rows.clear()
        elif key is not None:
            before = rows.pop(key, {})
            if value is not None and value["after"] is not None:
                rows[key] = before | value["after"] if merged else value["after"]
    return {str(row["id"]): _values(row) for row in rows.values()}


def by_position(events: list[Event]) -> list[Event]:
    """The same records in the order of their positions."""
    return sorted(events, key=lambda one: one[2])


def _values(row: Mapping[str, Any]) -> Values:
    return {name: value for name, value in row.items() if name != "id"}
