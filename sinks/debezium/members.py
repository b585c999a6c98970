"""The members of records, group by group → why earlier rows are doubtful, and until when.

PostgreSQL's WAL, and so Debezium's topics, have no event if DDL renames a column, gives older rows
a default, or converts their values. Only the changed members of later records show it. A removed
member leaves rows correct, except for its own null. Any other difference may make rows wrong.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from sinks.debezium.described import TopicLayout, plain_names
from sinks.debezium.forms import column_of
from sinks.debezium.records import RecordGroup
from sinks.run.debezium_topic import MemberDoubt, RowMembers

Members = tuple[tuple[str, str], ...]
"""A row's members in order, with their types from schemas. "": unknown."""
ROWS_MAX: Final = 20
"""How many different members a plan keeps, as a connector may write them in turn."""
_NUMERIC: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")


def newest_rows(
    groups: Sequence[RecordGroup], layout: TopicLayout, before: Sequence[RowMembers]
) -> tuple[RowMembers, ...]:
    """Return the recent members of rows, those of the newest rows last.

    If a connector writes rows in several forms (partitions whose columns have another order), the
    same members return merge after merge, followed by others. DDL doesn't cause that, nor does a
    connector that repeats some events. New members may come from DDL, so the earlier forms no
    longer count as usual.
    """
    ages = _by_age(groups, layout)
    turns = {row.members: row.turns for row in before}
    newest = before[-1].members if before else ()
    back = {members for members in ages[:-1] if members != newest}
    if not turns.keys() >= set(ages):
        turns, back = dict.fromkeys(turns, 0), set()
    for members in ages:
        has_come_back = bool(back) and members in {*back, ages[-1]}
        turns[members] = turns.pop(members, 0) + has_come_back
    rows = (RowMembers(members=members, turns=number) for members, number in turns.items())
    return tuple(rows)[-ROWS_MAX:]


def doubt_of(
    groups: Sequence[RecordGroup],
    layout: TopicLayout,
    before: Sequence[RowMembers],
    start: int = 0,
) -> MemberDoubt | None:
    """Return why rows are doubtful that no event has covered since. None: nothing shows that.

    The records begin at the offset ``start``. ``before`` is the earlier members of rows.
    """
    ages = _by_age(groups, layout)
    ordered = [before[-1].members, *ages] if before else ages
    usual = {row.members for row in newest_rows(groups, layout, before) if row.takes_turns}
    doubt: MemberDoubt | None = None
    for number, (was, now) in enumerate(pairwise(ordered), 1):
        changes, columns = differences(was, now)
        if changes and not {was, now} <= usual:
            older = set(ordered[:number]) - set(ordered[number:])
            of_older = (max(g.end, start) for g in groups if _members(g, layout) in older)
            first_ms = min((g.first_ms for g in groups if _members(g, layout) == now), default=0)
            later = MemberDoubt(
                changes=changes, columns=columns, since=max(of_older, default=start), ts_ms=first_ms
            )
            doubt = later if doubt is None else doubt.and_then(later)
    return doubt


def differences(was: Members, now: Members) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what may have changed rows without an event, and the columns concerned."""
    old, new = dict(was), dict(now)
    gone = [name for name in old if name not in new]
    came = [name for name in new if name not in old]
    kept, kept_now = ([n for n in names if n in old and n in new] for names in (old, new))
    changes: list[str] = []
    columns = list(came)
    if came and gone:
        changes.append(f"{_list(gone)} disappeared as {_list(came)} appeared: renamed?")
    elif came:
        changes.append(f"{_list(came)} appeared: added with a default?")
    if kept != kept_now:
        moved = [name for name, other in zip(kept, kept_now, strict=True) if name != other]
        changes.append(f"{_list(moved)} changed places: names exchanged, or a column added again?")
        columns += moved
    for name in kept:
        if not _keeps_values(old[name], new[name]):
            changes.append(f"{name} became {new[name]}, which was {old[name]}: values may differ")
            columns.append(name)
    return tuple(changes), tuple(dict.fromkeys(columns))


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _keeps_values(was: str, now: str) -> bool:
    """Whether a changed type leaves values unchanged. "": unknown."""
    if was == now or not (was and now):
        return True
    narrow, wide = _NUMERIC.fullmatch(was), _NUMERIC.fullmatch(now)
    return bool(narrow and wide and narrow[2] == wide[2] and int(narrow[1]) <= int(wide[1]))


def _by_age(groups: Sequence[RecordGroup], layout: TopicLayout) -> list[Members]:
    """Return the members of rows, each once, by their last record."""
    last: dict[Members, tuple[int, int]] = {}
    for group in groups:
        if members := _members(group, layout):
            last[members] = max(last.get(members, group.last), group.last)
    return sorted(last, key=last.__getitem__)


def _members(group: RecordGroup, layout: TopicLayout) -> Members:
    """Return a group's members; empty for tombstones, and for plain records without a row."""
    if group.value is None:
        return ()
    if group.value.encoding == "plain":
        return tuple((name, "") for name in plain_names(group.value))
    for known in layout.values:
        if known.mark == group.value.mark:
            members = known.members.items()
            return tuple((name, column_of(name, of, None).declared) for name, of in members)
    return ()
