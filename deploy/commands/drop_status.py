"""Plans and states of tables → what ``millrace status`` says of those that are gone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel

from cdc.log.offsets import LogState
from cdc.records.state import Progress, TableState
from cdc.settings import CaptureSettings
from cdc.settings.drops import DropPolicy
from deploy.commands.table_status import time_text
from sinks.run.drops import find_drops, is_emptied
from sinks.run.plan import RunPlan, WantedTable, goes_on
from sinks.run.summary import RunOutcome


class DropStatus(BaseModel):
    """A derived table whose captured ``table`` is gone at the source.

    Its rows go from ``due_ms`` on, by the daemon's clock (None: they stay), unless something
    ``held`` that up.
    """

    name: str
    table: str
    policy: DropPolicy
    due_ms: int | None
    held: str = ""
    needs_word: bool = False
    """Whether ``--accept-drop`` is what it takes: too many tables are missing."""
    emptied: bool = False


def drop_statuses(
    wanted: Mapping[str, WantedTable],
    plan: RunPlan | None,
    outcome: RunOutcome | None,
    progress: Progress | None,
    states: Sequence[TableState],
    capture: CaptureSettings,
) -> list[DropStatus]:
    """What becomes of derived tables that the last plan has, and whose captured ones are gone."""
    if plan is None or progress is None:
        return []
    state = LogState(progress, {str(each.name): each for each in states}, {}, {}, {})
    last = goes_on(plan, outcome) if outcome is not None else {}
    return [
        DropStatus(
            name=name,
            table=wanted[name].source,
            policy=wanted[name].drop.policy,
            due_ms=drop.due_ms,
            held=drop.held,
            needs_word=bool(drop.missing),
            emptied=name in last and is_emptied(last[name], drop.gone_ms),
        )
        for name, drop in find_drops(wanted, last, state, capture).items()
        if name in plan.all_tables
    ]


def drop_lines(sink: str, drops: Iterable[DropStatus]) -> Iterator[str]:
    """A line for each of a sink's derived tables: what becomes of its rows, and what to do."""
    for drop in drops:
        text = f"{sink}, {drop.name}: {drop.table} is gone at the source; its rows "
        if drop.emptied:
            text += "were deleted"
        elif drop.due_ms is None:
            text += 'stay, and go with table.drop.policy = "delete"'
        else:
            text += f"go with the first merge after {time_text(drop.due_ms)} UTC"
            if drop.needs_word:
                text += f" that you give --accept-drop {drop.table}: {drop.held}"
            elif drop.held:
                text += f", but stay as long as this holds: {drop.held}"
        yield text
