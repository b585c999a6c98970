"""What the log and an archive have of a derived table → of which of them it can be rebuilt.

A rebuild writes the whole table by one commit: whoever reads it sees the old rows or the new ones.
It must not lose anything, so a table is refused where neither has all that it needs:

| table | needs |
| --- | --- |
| current rows | each key: a compacted topic has it; a retained one has it from its first record on,
    or from a new read of all rows that the table doesn't have yet; else an archive |
| history | every event: an archive, or a log that has forgotten nothing |
| archive | a log that has forgotten nothing: else it is the only copy |
"""

import shlex
from typing import NamedTuple

from cdc.errors import LogForgottenError, TopicMismatchError
from cdc.log.offsets import LogState
from cdc.settings.lakehouse import TableKind, TopicWriter
from sinks.run.plan import TablePlan
from sinks.run.retained import is_read_again, read_again
from sinks.run.topics import Topics


class Kept(NamedTuple):
    """What there is of a captured table: what its topic still has, and an archive's name.

    The topic ``has_all`` events that it ever had, or ``has_keys``: the newest state of every row.
    ``read_again`` says how the user lets it have these.
    """

    has_all: bool
    has_keys: bool
    archive: str | None
    read_again: str = ""
    written_by: TopicWriter = "millrace"


def kept(topics: Topics, name: str, table: TablePlan, state: LogState, archive: str | None) -> Kept:
    """What there is of the records of a table, which stands as its plan says."""
    has_first = not any(state.starts[table.topic].values())
    is_compacted = state.tables[table.source].cleanup == "compact"
    return Kept(
        has_all=has_first and not (is_compacted and _has_forgotten(topics, name, table, state)),
        has_keys=has_first or is_read_again(table, state.tables[table.source]),
        archive=archive,
        read_again=read_again(table.source, state),
        written_by=topics.written_by,
    )


def _has_forgotten(topics: Topics, name: str, table: TablePlan, state: LogState) -> bool:
    """Whether compaction may have taken any record of a topic."""
    first = dict.fromkeys(table.start, 0)
    try:
        topics.require_retained(name, table.model_copy(update={"start": first}), state, fresh=False)
    except (LogForgottenError, TopicMismatchError):
        return True
    return False


def rebuilt_from(name: str, kind: TableKind, has: Kept) -> str | None:
    """The archive that a table is rebuilt from; None: it is the log.

    Raises LogForgottenError where neither has all that the table needs.
    """
    is_whole = has.has_keys if kind == "current" else has.has_all
    if is_whole and not (kind == "history" and has.archive):
        return None
    if has.archive and kind != "changes":
        return has.archive
    raise LogForgottenError(_WHY[kind], where=f"table {name}", remedy=_remedy(name, kind, has))


_WHY = {
    "current": "the log no longer has every row, and no archive has the missing ones",
    "history": "the log no longer has all changes, and no archive has the missing ones",
    "changes": "it is the only copy of changes that the log no longer has",
}


def _remedy(name: str, kind: TableKind, has: Kept) -> str:
    if kind == "changes":
        return "it still has all its rows: don't remove it; restore damaged files from a backup"
    if kind == "history":
        return (
            "it still has all its rows: don't remove it. An archive from the first record on"
            ' (kinds = [..., "changes"]) would have the missing changes'
        )
    if has.written_by == "debezium":
        return (
            "have Debezium write the table to a new topic, with a snapshot, and remove the Delta"
            " table: the next run begins with that topic"
        )
    return f"{has.read_again}; then `millrace rebuild lakehouse {shlex.quote(name)}`"
