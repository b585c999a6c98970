"""Captured tables that are gone at the source → the derived tables to empty, and those that wait.

A derived table of a table that was dropped, or renamed, is emptied as by a TRUNCATE at a run's cut.
So cuts, joined documents and a later table of that name need no special case. A deletion is final,
and a table may be missing for other reasons: a schema is being restored, or the daemon was pointed
at another server. So it requires a policy, a delay, and enough tables that still exist.

The delay is the time for which the daemon has watched the catalog, by its progress. If it is down,
far behind in the stream, or can't query, it doesn't see a table return. Then this time stops.
"""

import shlex
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cdc.errors import ConfigError, MillraceError, SinkError
from cdc.log.offsets import LogState
from cdc.records.state import Phase, Progress, TableState
from cdc.settings import CaptureSettings
from cdc.settings.drops import DropRule
from sinks.changes.ends import RowsEnd
from sinks.run.plan import TablePlan, awaits_read
from sinks.run.rekeyed import versions_at
from sinks.run.wanted import WantedTable

MISSING_MIN: Final = 3
MISSING_SHARE_MAX: Final = 0.2
"""If this many tables, and more than this share, are missing, the user must confirm it."""


class Drop(NamedTuple):
    """The fate of a derived table whose captured table is gone since ``gone_ms``.

    Its rows are deleted at ``due_ms`` (None: never), or later if the daemon is away until then.
    ``is_due`` says whether the time has come. ``held`` has the reason for a delay: for example, too
    many ``missing`` tables, which the user must confirm.
    """

    gone_ms: int
    due_ms: int | None = None
    is_due: bool = False
    held: str = ""
    missing: tuple[str, ...] = ()

    @property
    def acts(self) -> bool:
        """Whether its rows are deleted now."""
        return self.is_due and not self.held


def drop_of(
    captured: TableState,
    rule: DropRule,
    progress: Progress,
    missing: Collection[str] = (),
    *,
    is_captured: bool = True,
) -> Drop | None:
    """Return a derived table's drop. None: the source has the captured table.

    ``missing`` are all missing tables, if they are too many. The table is known to be gone only
    while the lists let it be captured (``is_captured``).
    """
    if not captured.gone_ms:
        return None
    if rule.policy == "keep":
        return Drop(captured.gone_ms)
    left_ms = captured.gone_watched_ms + rule.delay_ms - progress.watched_ms
    due_ms = max(captured.gone_ms + rule.delay_ms, progress.ts_ms + left_ms)
    drop = Drop(captured.gone_ms, due_ms, is_due=left_ms <= 0)
    if held := _held(captured, progress, is_captured=is_captured):
        return drop._replace(held=held)
    if missing:
        return drop._replace(held=_missing_text(missing), missing=tuple(missing))
    return drop


def _held(captured: TableState, progress: Progress, *, is_captured: bool) -> str:
    """Return why it is unsure that the whole table is gone from the log's source."""
    is_other = captured.gone_system not in {"", progress.system_identifier}
    reasons = {
        "the lists leave it out, so the daemon doesn't check whether it is back": not is_captured,
        (
            "the daemon can't check in which cluster it is missing: GRANT EXECUTE ON FUNCTION"
            " pg_control_system() to its role"
        ): not captured.gone_system,
        "it is missing in another cluster than the captured one": is_other
        or captured.epoch != progress.position.epoch,
        "another table or view has its name, and can't be read": captured.is_name_taken,
        "it was dropped while its rows were being read": captured.phase is not Phase.STREAMING,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _missing_text(missing: Collection[str]) -> str:
    share = f"{MISSING_SHARE_MAX:.0%}"
    return (
        f"{len(missing)} tables with rows to delete no longer exist at the source, more than"
        f" {share} of such tables"
    )


def too_many_missing(
    states: Mapping[str, TableState], capture: CaptureSettings, emptiable: Collection[str]
) -> list[str]:
    """Return the missing captured tables, if they are a large share of the counted ones.

    Those are all tables whose rows a sink deletes if they are gone (``emptiable``), and hasn't yet.
    Tables whose rows it keeps would be missing permanently.
    """
    counted = [name for name in emptiable if name in states and capture.captures(name)]
    missing = sorted(name for name in counted if states[name].gone_ms)
    is_many = len(missing) >= MISSING_MIN and len(missing) > MISSING_SHARE_MAX * len(counted)
    return missing if is_many else []


def settled_tables(plans: Mapping[str, TablePlan], states: Mapping[str, TableState]) -> set[str]:
    """Return the captured tables with a derived table that was emptied because they are gone."""
    return {
        table.source
        for table in plans.values()
        if table.source in states and is_emptied(table, states[table.source].gone_ms)
    }


def is_emptied(table: TablePlan, gone_ms: int) -> bool:
    """Whether a derived table was emptied after its captured table was gone."""
    return bool(gone_ms) and table.emptied is not None and table.emptied.ts_us == gone_ms * 1_000


def find_drops(
    wanted: Mapping[str, WantedTable],
    before: Mapping[str, TablePlan],
    state: LogState,
    capture: CaptureSettings,
    accepted: Collection[str] = (),
) -> dict[str, Drop]:
    """Return the drop of each derived table whose captured table is gone. An archive stays.

    ``before`` are the current plans. The user says that ``accepted`` tables were dropped. Raise
    ConfigError for one that isn't captured.
    """
    if unknown := sorted(set(accepted) - state.tables.keys()):
        raise ConfigError(f"unknown captured table: {', '.join(unknown)}", where="--accept-drop")
    if not any(table.gone_ms for table in state.tables.values()):
        return {}
    emptiable = {
        table.source
        for table in wanted.values()
        if table.kind != "changes" and table.drop.policy == "delete"
    }
    emptiable -= settled_tables(before, state.tables)
    missing = too_many_missing(state.tables, capture, emptiable)
    drops = {
        name: drop_of(
            state.tables[table.source],
            table.drop,
            state.progress,
            () if table.source in accepted else missing,
            is_captured=capture.captures(table.source),
        )
        for name, table in wanted.items()
        if table.kind != "changes"
    }
    return {name: drop for name, drop in drops.items() if drop is not None}


def not_read_again(
    before: Mapping[str, TablePlan], state: LogState, wanted: Mapping[str, WantedTable]
) -> dict[str, MillraceError]:
    """Return wanted tables that need a read of their captured tables, which isn't planned.

    Tables that the daemon will read, or is reading, wait.
    """
    errors = dict[str, MillraceError]()
    for name, request in wanted.items():
        table, captured = before.get(name), state.tables.get(request.source)
        if captured is None or captured.requests or captured.is_to_settle:
            continue
        versions = versions_at(state.schemas.get(request.source, ()), state.progress.cut)
        if awaits_read(table, captured, versions):
            why = (
                f"it was emptied while {request.source} was missing at the source, which is back"
                if table is not None and table.emptied
                else f"the key of {request.source} has changed"
            )
            errors[name] = SinkError(
                f"{why}, and the daemon doesn't read it again by itself (millrace status says why)",
                where=f"table {name}",
                remedy=f"millrace snapshot --reset {shlex.quote(request.source)}",
            )
    return errors


def refusal(drops: Mapping[str, Drop], before: Mapping[str, TablePlan], sink: str) -> str:
    """Return the message if rows are due, and the user must confirm it. Empty: nothing."""
    for name, drop in drops.items():
        is_done = name in before and is_emptied(before[name], drop.gone_ms)
        if drop.is_due and drop.missing and not is_done:
            words = " ".join(f"--accept-drop {shlex.quote(each)}" for each in drop.missing)
            return (
                f"{drop.held}: their derived rows stay. If all of them were dropped or renamed on"
                f" purpose: millrace merge {sink} {words}"
            )
    return ""


def any_to_empty(tables: Mapping[str, TablePlan], drops: Mapping[str, Drop]) -> bool:
    """Whether any table must be emptied."""
    return any(_is_to_empty(table, drops.get(name)) for name, table in tables.items())


def with_emptied(
    tables: Mapping[str, TablePlan],
    drops: Mapping[str, Drop],
    state: LogState,
    rows_of: Callable[[str], int | None],
    report: Callable[[str], None],
) -> dict[str, TablePlan]:
    """Return the plans, which also empty tables. Report deletions first.

    A table waits for the next run if the log has more of it than the cut: this may be of another
    table of its name.
    """
    cut, plans = state.progress.cut, dict(tables)
    for name, table in tables.items():
        drop = drops.get(name)
        if drop is None or not _is_to_empty(table, drop):
            continue
        if not table.end == table.next == state.ends[table.topic]:
            continue
        if table.base:
            report(_announcement(name, state.tables[table.source], rows_of(name)))
        end = RowsEnd(position=cut, ts_us=drop.gone_ms * 1_000)
        plans[name] = table.model_copy(update={"ends": (*table.ends, end), "emptied": end})
    return plans


def _is_to_empty(table: TablePlan, drop: Drop | None) -> bool:
    """Whether a plan must empty its table.

    A rebuild would restore the rows that the log still has.
    """
    if drop is None or not drop.acts:
        return False
    return table.rebuilds or not is_emptied(table, drop.gone_ms)


def _announcement(name: str, captured: TableState, rows: int | None) -> str:
    was = f"renamed to {captured.renamed_to}" if captured.renamed_to else "dropped"
    seen = datetime.fromtimestamp(captured.gone_ms / 1e3, UTC).isoformat(" ", "seconds")[:19]
    count = "all" if rows is None else f"{rows:,}"
    return (
        f"{name}: {captured.name} was {was} at the source (seen {seen} UTC): its {count} rows are"
        " deleted (table.drop.policy = delete)"
    )
