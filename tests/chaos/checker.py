"""What was committed, the log as read, and the source's rows → what is wrong, and figures.

A change's frame has an index in its transaction, and the records made of it have that index in
their position. So each is looked for where it has to be: what isn't there is lost, what is there
again is a duplicate, and what stands elsewhere is out of order.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.records.topics import TRUNCATE_KEY
from tests.chaos.values import differing, same_value
from tests.chaos.witness import Change, Row, Transaction, Value
from tests.fixtures.pipeline import LogRecord

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "item": ("id",),
    "account": ("id",),
    "loose": (),
    "pair": ("a", "b"),
    "bulk": ("batch", "n"),
    "probe": ("id",),
}
_FULL: Final = {"account", "loose"}
_SHOWN_MAX: Final = 20
SourceRows = Mapping[str, list[Row]]


@dataclass(slots=True)
class Verdict:
    """Counts of what is wrong, and the first of each in words."""

    events: int = 0
    transactions: int = 0
    lost: int = 0
    duplicated: int = 0
    disordered: int = 0
    different: int = 0
    absent: int = 0
    """Large values that the final state lacks because the source couldn't be read in time."""
    shown: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the log is the source's history, once."""
        return not (self.lost or self.duplicated or self.disordered or self.different)

    def tell(self, text: str) -> None:
        """Keep it for people, if there aren't many already."""
        if len(self.shown) < _SHOWN_MAX:
            self.shown.append(text)


def check(
    committed: Sequence[Transaction],
    records: Sequence[LogRecord],
    rows: SourceRows,
    partitions: Mapping[str, int],
) -> Verdict:
    """Compare all; ``partitions`` of each table's topic, ``rows`` as SELECT prints them."""
    verdict = Verdict(events=len(records))
    streamed = [record for record in records if record.position.index > 0]
    _check_order(records, verdict)
    _check_transactions(committed, streamed, partitions, verdict)
    for table, key in KEYS.items():
        own = [record for record in records if table_of(record) == table]
        _check_state(table, key, own, rows[table], verdict)
    return verdict


def table_of(record: LogRecord) -> str:
    """The table whose topic the record is in."""
    return record.topic.rpartition(".")[2]


def _check_order(records: Sequence[LogRecord], verdict: Verdict) -> None:
    """Positions grow with offsets, and a key stays in its partition."""
    last: dict[tuple[str, int], LogRecord] = {}
    homes: dict[tuple[str, str], int] = {}
    for record in sorted(records, key=lambda record: record.offset):
        before = last.get((record.topic, record.partition))
        if before is not None and record.position < before.position:
            verdict.disordered += 1
            verdict.tell(f"out of order: {_name(record)} after {before.position}")
        last[record.topic, record.partition] = record
        if record.key is None or record.key == TRUNCATE_KEY.decode():
            continue
        home = homes.setdefault((record.topic, record.key), record.partition)
        if home != record.partition:
            verdict.disordered += 1
            verdict.tell(f"another partition than {home}: {_name(record)}")


def _check_transactions(
    committed: Sequence[Transaction],
    streamed: Iterable[LogRecord],
    partitions: Mapping[str, int],
    verdict: Verdict,
) -> None:
    by_commit: dict[int, list[LogRecord]] = defaultdict(list)
    for record in streamed:
        by_commit[record.position.commit_lsn].append(record)
    by_xid: dict[int, list[LogRecord]] = {}
    order: list[int] = []
    for lsn in sorted(by_commit):
        xid = _xid(by_commit[lsn])
        if xid in by_xid:
            verdict.duplicated += len(by_commit[lsn])
            verdict.tell(f"transaction {xid} is there again, at {lsn:x}")
            continue
        by_xid[xid] = by_commit[lsn]
        order.append(xid)
    known = [transaction for transaction in committed if transaction.changes]
    verdict.transactions = len(known)
    for transaction in known:
        found = by_xid.pop(transaction.xid, [])
        _check_frames(transaction, found, partitions, verdict)
    for xid, found in by_xid.items():
        verdict.duplicated += len(found)
        verdict.tell(f"transaction {xid} was never committed: {_name(found[0])}")
    places = {transaction.xid: place for place, transaction in enumerate(known)}
    logged = [places[xid] for xid in order if xid in places]
    for before, after in zip(logged, logged[1:], strict=False):
        if after < before:
            verdict.disordered += 1
            verdict.tell(f"transaction {known[after].xid} comes after {known[before].xid}")


def _xid(records: Iterable[LogRecord]) -> int:
    """All events of a transaction carry its id; a tombstone alone has none."""
    for record in records:
        if record.value is not None:
            return int(record.value["source"]["txId"])
    return 0


def _check_frames(
    transaction: Transaction,
    found: Iterable[LogRecord],
    partitions: Mapping[str, int],
    verdict: Verdict,
) -> None:
    frames: dict[int, list[LogRecord]] = defaultdict(list)
    for record in found:
        frames[record.position.index].append(record)
    for index, change in enumerate(transaction.changes, 1):
        _check_frame(transaction, change, frames.pop(index, []), partitions, verdict)
    for extra in frames.values():
        verdict.duplicated += len(extra)
        verdict.tell(f"nothing was changed there: {_name(extra[0])}")


def _check_frame(
    transaction: Transaction,
    change: Change,
    found: list[LogRecord],
    partitions: Mapping[str, int],
    verdict: Verdict,
) -> None:
    wanted = Counter(_wanted(change, partitions))
    has = Counter((table_of(record), record.op) for record in found)
    missing, extra = wanted - has, has - wanted
    what = f"{change.kind} of {', '.join(change.tables)} in transaction {transaction.xid}"
    if missing:
        verdict.lost += missing.total()
        verdict.tell(f"lost: {dict(missing)} of {what} (commit ends at {transaction.lsn})")
    if extra:
        verdict.duplicated += extra.total()
        verdict.tell(f"twice: {dict(extra)} of {what}, {_name(found[0])}")
    operations = [record.op for record in sorted(found, key=lambda record: record.offset)]
    if change.kind == "UPDATE" and "u" not in operations and _is_in_one_place(found):
        if operations != sorted(operations, key="d tombstone c".split().index):
            verdict.disordered += 1
            verdict.tell(f"records of {what} come as {operations}")
    for record in found:
        if reason := _difference(change, record):
            verdict.different += 1
            verdict.tell(f"{reason} differs: {what}, {_name(record)}")


def _is_in_one_place(found: Iterable[LogRecord]) -> bool:
    return len({record.partition for record in found}) == 1


def _wanted(change: Change, partitions: Mapping[str, int]) -> list[tuple[str, str]]:
    """The operations of the records that a change has to have."""
    if change.kind == "message":
        return []
    if change.kind == "TRUNCATE":
        return [(table, "t") for table in change.tables for _ in range(partitions[table])]
    (table,) = change.tables
    gone = ["d", "tombstone"] if KEYS[table] else ["d"]
    if change.kind == "INSERT":
        return [(table, "c")]
    if change.kind == "DELETE":
        return [(table, op) for op in gone]
    return [(table, op) for op in ([*gone, "c"] if _moves(change) else ["u"])]


def _moves(change: Change) -> bool:
    key = KEYS[change.tables[0]]
    old, new = change.old or {}, change.new or {}
    return any(name in old and old[name].text != new[name].text for name in key)


def _difference(change: Change, record: LogRecord) -> str:
    """What of a record isn't what was changed, or nothing."""
    if record.op == "t" or change.new is change.old:
        return ""
    table = change.tables[0]
    new = _with_old_values(change) if table in _FULL else change.new
    row = change.old or new if record.op in {"d", "tombstone"} else new
    if row is None:
        return "the operation"
    if KEYS[table] and not _same_key(row, KEYS[table], record.key):
        return "the key"
    if record.value is None:
        return ""
    after, before = record.value["after"], record.value["before"]
    if record.op in {"c", "u"}:
        if after is None:
            return "after"
        if names := differing(new or {}, after, complete=True):
            return f"after: {names}"
    if table in _FULL and record.op in {"d", "u"} and change.old is not None:
        # NULLs of an old row aren't printed.
        printed = {name: value for name, value in (before or {}).items() if value is not None}
        if names := differing(change.old, printed, complete=False):
            return f"before: {names}"
    return ""


def _with_old_values(change: Change) -> Row | None:
    """With the whole old row in the WAL, nothing is unknown."""
    if change.new is None or change.old is None:
        return change.new
    old = change.old
    return {
        name: old.get(name, Value(value.type, None)) if value.unchanged else value
        for name, value in change.new.items()
    }


def _same_key(row: Row, key: Sequence[str], logged: str | None) -> bool:
    members = json.loads(logged) if logged else None
    return (
        isinstance(members, dict)
        and set(members) == set(key)
        and all(same_value(row[name], members[name]) for name in key)
    )


def _check_state(
    table: str,
    key: Sequence[str],
    records: Sequence[LogRecord],
    rows: Sequence[Row],
    verdict: Verdict,
) -> None:
    """What the records add up to is what SELECT says."""
    ordered = sorted(records, key=lambda record: (record.position, record.offset))
    if not key:
        _check_bag(table, ordered, rows, verdict)
        return
    state: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in ordered:
        if record.op == "t":
            state.clear()
        elif record.op in {"d", "tombstone"}:
            state.pop(_members(record, key), None)
        elif record.value is not None:
            place = _members(record, key)
            state[place] = state.get(place, {}) | record.value["after"]
    for row in rows:
        place = tuple(_plain(row[name]) for name in key)
        has = state.pop(place, None)
        if has is None:
            verdict.different += 1
            verdict.tell(f"the log lacks a row of {table}: {place}")
            continue
        names = [name for name, value in row.items() if not same_value(value, has.get(name))]
        if names == ["big"] and "big" not in has:
            verdict.absent += 1
        elif names:
            verdict.different += 1
            verdict.tell(f"the log's row of {table} {place} has other {names}")
    for place in state:
        verdict.different += 1
        verdict.tell(f"the log has a row of {table} that isn't there: {place}")


def _check_bag(
    table: str, ordered: Sequence[LogRecord], rows: Sequence[Row], verdict: Verdict
) -> None:
    bag: Counter[str] = Counter()
    names = ("v", "t", "f")

    def text(row: Mapping[str, Any]) -> str:
        return json.dumps([row.get(name) for name in names])

    for record in ordered:
        assert record.value is not None
        if record.op == "t":
            bag.clear()
        if record.op in {"d", "u"}:
            bag[text(record.value["before"])] -= 1
        if record.op in {"c", "u", "r"}:
            bag[text(record.value["after"])] += 1
    bag.subtract(json.dumps([_plain(row[name]) for name in names]) for row in rows)
    for row_text, count in bag.items():
        if count:
            verdict.different += 1
            verdict.tell(f"the log has {count:+} rows of {table} {row_text}")


def _members(record: LogRecord, key: Sequence[str]) -> tuple[Any, ...]:
    members = json.loads(record.key or "{}")
    return tuple(members[name] for name in key)


def _plain(value: Value) -> Any:
    if value.text is None:
        return None
    if value.type in {"integer", "bigint"}:
        return int(value.text)
    return float(value.text) if value.type == "double precision" else value.text


def _name(record: LogRecord) -> str:
    return (
        f"{record.op} of {record.key} at {record.position} in {record.topic}/{record.partition}"
        f" at offset {record.offset}"
    )
