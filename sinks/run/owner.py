"""What stands in a sink → whether runs of this log may go on from it, or whose it is.

Nothing here takes Spark, so that who only looks can ask as runs do.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from cdc.errors import ConfigError, SinkError
from cdc.settings.lakehouse import TopicWriter
from sinks.changes.derived import Derived, local_path
from sinks.run.plan import RunPlan

LOG_FOLDER = "_delta_log"


def require_same_writer(plan: RunPlan, sink: str, prefix: str, written_by: TopicWriter) -> None:
    """Raise ConfigError where the plan is of other topics than those that are read now."""
    if plan.prefix != prefix:
        raise ConfigError(
            f"the {sink} belongs to topic.prefix {plan.prefix}",
            where=f"[{sink}]",
            remedy=f"give each topic.prefix a {sink} of its own",
        )
    if plan.written_by != written_by:
        raise ConfigError(
            f"the {sink} was begun with topics written by {plan.written_by}",
            where=f"[{sink}] topics_written_by",
            remedy=f"give those of another writer a {sink} of their own",
        )


def application(prefix: str, derived: str) -> str:
    """The id by which the commits of a derived table have the numbers of their runs."""
    # Spark replaces ${…} in the value of a setting, which this becomes.
    return f"millrace/{prefix}/{derived}".replace("$", "%24")


def foreign_table(path: str, run: int | None, expected: int) -> SinkError:
    """What to say of a Delta table that isn't as the plans have left it; None: there is none."""
    state = "isn't there" if run is None else f"has run {run}" if run else "isn't ours"
    return SinkError(
        f"the Delta table {state}, but the plan goes on from run {expected}",
        where=path,
        remedy="if no other run is under way, remove the Delta table: the next run rebuilds it",
    )


def foreign_tables(
    tables: Mapping[str, Derived], plan: RunPlan | None, prefix: str
) -> Iterator[SinkError]:
    """The Delta tables on this machine that the next run would refuse to write for the first time.

    ``plan`` is the last one: a table that it begins may have been committed.
    """
    begun = plan.all_tables if plan is not None else {}
    for name, derived in sorted(tables.items()):
        folder = local_path(derived.path)
        if folder is None or (name in begun and begun[name].base):
            continue
        if (folder / LOG_FOLDER).is_dir():
            run = _run_of(folder / LOG_FOLDER, application(prefix, name))
            if plan is None or name not in begun or run not in {None, plan.run}:
                yield foreign_table(derived.path, run or 0, 0)


def _run_of(log: Path, of: str) -> int | None:
    """The last run that the newest commits of a Delta table name; 0: none, None: not known.

    Of older commits, what is left is in a checkpoint, which takes Spark.
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers
    """
    for commit in sorted(log.glob("*.json"), reverse=True):
        for line in commit.read_text("utf-8").splitlines():
            transaction = json.loads(line).get("txn", {})
            if transaction.get("appId") == of:
                return int(transaction["version"])
    return None if (log / "_last_checkpoint").exists() else 0
