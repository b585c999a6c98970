"""A table that is gone at the source → its state, and the warnings for its user."""

import time
from typing import Final

import structlog

from cdc.postgres.fingerprints import CatalogTable
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import is_readable_name
from cdc.records.sql_names import quote
from cdc.records.state import TableState
from cdc.settings import CaptureSettings
from cdc.tables.tables import Joined, Tables
from snapshots.inspection import Finding

log = structlog.get_logger()
THERE: Final = {
    "gone_ms": 0,
    "gone_system": "",
    "gone_watched_ms": 0,
    "renamed_to": "",
    "is_name_taken": False,
    "right_until": None,
}
"""The state of a table that isn't gone."""


def take_gone(
    tables: Tables,
    settings: CaptureSettings,
    state: TableState,
    finding: Finding,
    system: str,
    reached: Position,
) -> Joined:
    """Read another table of that name in its place, or record that the table is gone.

    The time of its absence stays only while no table has its name, in the same cluster
    (``system``). A table that can't be captured has the name, too. Then no derived rows are removed
    until it can be.
    """
    name, states, successor = state.name, tables.states, finding.described
    records, is_name_taken = list[Record](), finding.is_name_taken
    if successor is not None and successor.oid != state.oid and successor.entry:
        obstacle = tables.obstacles.of(successor)
        if obstacle is None:
            log.warning("another table has the name: it is read instead", table=str(name))
            return tables.join(successor, reached, read=True)
        records, is_name_taken = tables.obstacles.refuse(successor, obstacle, reached), True
        state = states[name]
    is_still_gone = state.gone_ms and state.gone_system == system and not state.is_name_taken
    now: dict[str, object] = {
        "gone_ms": state.gone_ms if is_still_gone else time.time_ns() // 1_000_000,
        "gone_system": system,
        "gone_watched_ms": state.gone_watched_ms if is_still_gone else states.watched_ms,
        "renamed_to": str(finding.renamed.name) if finding.renamed else "",
        "is_name_taken": is_name_taken,
        "right_until": states.right_until(name),
    }
    gone = state.model_copy(update=now)
    since = {"gone_ms": state.gone_ms, "gone_watched_ms": state.gone_watched_ms}
    if state.gone_ms and gone.model_copy(update=since) == state:
        return Joined(records)
    tell_gone(gone, finding.renamed, settings)
    return Joined([*records, *states.put(gone)])


def tell_gone(state: TableState, renamed: CatalogTable | None, settings: CaptureSettings) -> None:
    """Log what happens to a table that is gone, and what its user can do."""
    told = {
        "table": str(state.name),
        "derived": "its derived rows stay, or are deleted, by table.drop.policy",
    }
    if renamed is None:
        log.warning("a table was dropped", **told)
    else:
        new_name = str(renamed.name)
        told |= {"renamed_to": new_name}
        if not is_readable_name(renamed.name):
            told |= {
                "reason": "its new name isn't UTF-8: it is no longer captured",
                "remedy": "rename it by its OID (docs/guides/postgresql.md, Encodings, shows how)",
            }
        elif not settings.captures(new_name):
            told |= {"reason": "the lists leave the new name out: it is no longer captured"}
            if renamed.entry and settings.publication_autocreate_mode == "filtered":
                # While it is published, PostgreSQL decodes its changes without need.
                publication = quote(settings.publication_name)
                table = ".".join(map(quote, renamed.name))
                alter = f"ALTER PUBLICATION {publication} DROP TABLE ONLY {table};"
                told |= {"remedy": alter}
        elif not renamed.entry:
            told |= {"reason": "it isn't published with its new name: add it"}
        else:
            told |= {"reason": "it is read with its new name"}
        log.warning("a table was renamed", **told)
    if state.is_name_taken:
        log.warning(
            "another table or view has the name of a dropped table, and can't be read instead",
            table=str(state.name),
            remedy="if it is a table, publish it, and make it fit for capture: it is then read"
            " instead; if it is a view, the derived rows stay",
        )
