"""The log's and an archive's records of a derived table → the source of its rebuild.

A rebuild writes the whole table in one commit, so a reader sees the old rows or the new ones. It
must not lose anything, so it is refused unless one source has everything that the table needs:

  | table | needs |
  | --- | --- |
  | current rows | each key: a compacted topic has it; a retained one has it from its first record
    on, or from a new read of all rows that the table doesn't have yet; else an archive |
  | history | every event: an archive, or a log that is still complete |
  | archive | a log that is still complete: otherwise it is the only copy |
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
    """The records left of a captured table: its topic's, and an archive's name.

    The topic ``has_all`` events ever written, or ``has_keys``: the newest state of every row.
    ``read_again`` tells the user how to restore these.
    """

    has_all: bool
    has_keys: bool
    archive: str | None
    read_again: str = ""
    written_by: TopicWriter = "millrace"


def kept(topics: Topics, name: str, table: TablePlan, state: LogState, archive: str | None) -> Kept:
    """Return the records left of a table in the state of its plan."""
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
    """Whether compaction may have removed any record of a topic."""
    first = dict.fromkeys(table.start, 0)
    try:
        topics.require_retained(name, table.model_copy(update={"start": first}), state, fresh=False)
    except (LogForgottenError, TopicMismatchError):
        return True
    return False


def rebuilt_from(name: str, kind: TableKind, has: Kept) -> str | None:
    """Return the archive from which a table is rebuilt. None: from the log.

    Raise LogForgottenError if neither has everything that the table needs.
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
