"""One change, and the records made of it → whether they are the expected ones, with its values."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.chaos.values import differing, same_value
from tests.chaos.verdict import KEYS, Verdict, named, table_of
from tests.chaos.witness import Change, Row, Value
from tests.fixtures.pipeline import LogRecord

_FULL: Final = {"account", "loose"}
"""Tables whose updates and deletes have the whole old row."""
_MOVE: Final = ["d", "tombstone", "c"]


def check_frame(
    where: str,
    change: Change,
    records: Sequence[LogRecord],
    partitions: Mapping[str, int],
    verdict: Verdict,
) -> None:
    """Compare; ``records`` in the order of offsets, ``where`` says which transaction it is."""
    wanted = Counter(_wanted(change, partitions))
    has = Counter((table_of(record), record.op) for record in records)
    missing, extra = wanted - has, has - wanted
    what = f"{change.kind} of {', '.join(change.tables)} in {where}"
    if missing:
        verdict.lost += missing.total()
        verdict.tell(f"lost: {dict(missing)} of {what}")
    if extra:
        verdict.duplicated += extra.total()
        verdict.tell(f"twice: {dict(extra)} of {what}, {named(records[0])}")
    # A key that changes may change its partition: there is no order between two.
    used_partitions = {record.partition for record in records}
    operations = [record.op for record in records]
    if "c" in operations and len(used_partitions) == 1 and operations != _MOVE[-len(operations) :]:
        verdict.disordered += 1
        verdict.tell(f"records of {what} come as {operations}")
    for record in records:
        if record.op != "t" and (reason := _difference(change, record)):
            verdict.different += 1
            verdict.tell(f"{reason} differs: {what}, {named(record)}")


def _wanted(change: Change, partitions: Mapping[str, int]) -> list[tuple[str, str]]:
    """The records that a change has to have: tables and operations."""
    if change.kind == "TRUNCATE":
        return [(table, "t") for table in change.tables for _ in range(partitions[table])]
    made = []
    for table in change.tables:
        gone = ["d", "tombstone"] if KEYS[table] else ["d"]
        operations = {"INSERT": ["c"], "UPDATE": ["u"], "DELETE": gone}[change.kind]
        made += [(table, op) for op in ([*gone, "c"] if _moves(change) else operations)]
    return made


def _moves(change: Change) -> bool:
    """Whether an update changes the key."""
    old, new = change.old, change.new
    if old is None or new is None:
        return False
    return any(old[name].text != new[name].text for name in KEYS[change.tables[0]])


def _difference(change: Change, record: LogRecord) -> str:
    """What of a record isn't what was changed, or nothing."""
    table = table_of(record)
    full = table in _FULL
    new = _with_old_values(change) if full else change.new
    row = change.old if record.value is None or record.op == "d" else new
    if row is None:
        return "the operation"
    if KEYS[table] and not _same_key(row, KEYS[table], record.key):
        return "the key"
    value: Mapping[str, Any] = record.value or {}
    if record.op in {"c", "u"}:
        names = differing(row, value["after"], complete=True)
        if names:
            return f"after: {names}"
    if full and record.op in {"d", "u"} and change.old is not None:
        # The witness doesn't print an old row's NULLs.
        before = {name: item for name, item in value["before"].items() if item is not None}
        names = differing(change.old, before, complete=False)
        return f"before: {names}" if names else ""
    return ""


def _with_old_values(change: Change) -> Row | None:
    """With the whole old row in the WAL, nothing is unknown."""
    old, new = change.old, change.new
    if old is None or new is None:
        return new
    return {
        name: old.get(name, Value(value.type, None)) if value.unchanged else value
        for name, value in new.items()
    }


def _same_key(row: Row, key: Sequence[str], logged: str | None) -> bool:
    members = json.loads(logged) if logged else None
    return (
        isinstance(members, dict)
        and set(members) == set(key)
        and all(same_value(row[name], members[name]) for name in key)
    )
