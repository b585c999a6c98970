"""A table's plan and its changes → one commit to its Delta table."""

from collections.abc import Sequence
from functools import partial

from cdc.errors import ConfigError
from cdc.records.schema import TableSchema
from sinks.changes.derived import Derived
from sinks.changes.newest import Newest
from sinks.changes.shape import TableShape, derive_shape
from sinks.delta.archive import write_changes
from sinks.delta.commit import DeltaTransaction, commit
from sinks.delta.current import merge, write_new
from sinks.delta.history import Gap, merge_history, write_new_history
from sinks.delta.keyless import merge_keyless, write_new_keyless
from sinks.delta.replace import SMALL_BYTES, mark, rewrite
from sinks.delta.table import DeltaTarget
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import Rows
from sinks.run.topics import TableChanges


def apply_changes(
    target: DeltaTarget, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """Commit what the plan says to the table, unless the table has it already."""
    _require_key(target, keyed=bool(changes.versions[-1].key))
    write = partial(_write, target, plan, changes, shape)
    return commit(target, plan.run, plan.tables[target.name].base, shape, write)


def _require_key(target: DeltaTarget, *, keyed: bool) -> None:
    """Raise ConfigError where a kind follows rows by their keys, and there are none."""
    derived = target.derived
    if not keyed and (derived.kind == "history" or derived.marks_deletes):
        raise ConfigError(
            f"{derived.source} has no key, by which a row could be followed",
            where="[[lakehouse.tables]]",
            remedy='leave out kind = "history" and deletes = "mark" for it',
        )


def _write(target: DeltaTarget, plan: RunPlan, changes: TableChanges, shape: TableShape) -> Rows:
    table = plan.tables[target.name]
    if table.kind == "changes":
        return write_changes(target, changes, shape, table)
    if table.kind == "history":
        return _write_history(target, plan, changes, shape)
    if shape.keys:
        return _write_rows(target, plan, changes, shape)
    images = changes.images(shape)
    if not table.base:
        return write_new_keyless(target, images, shape)
    return merge_keyless(target, images, shape, changes.older())


def _write_history(
    target: DeltaTarget, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    table = plan.tables[target.name]
    if not table.base:
        return write_new_history(target, changes.timed(shape, None), shape, table)
    stored = target.spark.read.format("delta").load(target.path)
    whole = changes.behind_gap(shape)
    gap = None if whole is None else Gap(whole, plan.ts_ms)
    return merge_history(target, changes.timed(shape, stored), shape, table, gap)


def _write_rows(
    target: DeltaTarget, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    table = plan.tables[target.name]
    if not table.base:
        with changes.newest(shape) as newest:
            return write_new(target, newest.all(), shape)
    older = changes.older()
    simple = not (table.rebuilds or target.derived.marks_deletes) and DeltaTransaction.is_supported(
        target
    )
    if simple and target.size_bytes() < SMALL_BYTES:
        with changes.newest(shape) as newest:
            return rewrite(target, plan.run, newest, shape, older)
    with changes.newest(shape, ranges=older is None) as newest:
        if simple and older is None and _can_mark(target, changes, newest):
            return mark(target, plan.run, newest, shape)
        return merge(target, newest, shape, older, rebuilds=table.rebuilds)


def _can_mark(target: DeltaTarget, changes: TableChanges, newest: Newest) -> bool:
    """Whether stored rows that have a change can go without a look at them."""
    return changes.are_newer(newest) and target.has_deletion_vectors()


def shape_of(derived: Derived, table: TablePlan, versions: Sequence[TableSchema]) -> TableShape:
    """The columns that a derived table has, of these schema versions."""
    return derive_shape(
        versions,
        table.first_version,
        derived.options,
        derived.reserved,
        salt=derived.salt,
        by_key=derived.kind != "changes",
    )
