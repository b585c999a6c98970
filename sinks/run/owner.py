"""The state of a sink → whether runs of this log may continue from it, and one run at a time.

Nothing here needs Spark, so inspections use the same checks as runs.
"""

import fcntl
import hashlib
import json
import os
import pwd
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cdc.errors import BusyError, ConfigError, DiskError, MillraceError, SinkError
from cdc.settings.lakehouse import TopicWriter
from sinks.changes.derived import Derived, local_path
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.wanted import WantedTable
from sinks.spark.files import LocalFiles, reachable
from sinks.spark.private_files import own_folder

LOG_FOLDER = "_delta_log"


class KeptOut:
    """The runs that a lock keeps out. Each appends a byte to its file."""

    def __init__(self, lock: BinaryIO) -> None:
        self._lock = lock
        with suppress(OSError):
            lock.truncate(0)

    @staticmethod
    def leave(lock: BinaryIO) -> None:
        """Record that a run was kept out."""
        with suppress(OSError):  # a full disk is reported by the run that has the lock
            os.write(lock.fileno(), b".")

    def count(self) -> int:
        """Return how many runs were kept out so far."""
        return os.fstat(self._lock.fileno()).st_size


@contextmanager
def one_at_a_time(location: str) -> Iterator[KeptOut]:
    """Keep a second run on this machine out. Raise BusyError in that one.

    The lock only saves work and gives a clear message. Each table's transaction makes two runs
    safe.
    """
    require_owner(location)
    folder = local_path(location)
    if folder is None:
        name = hashlib.sha256(location.encode()).hexdigest()[:16]
        path = own_folder() / f"{name}.lock"
    else:
        path = folder / "_millrace" / "lock"
    with reachable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("ab")
        except PermissionError:
            raise _not_ours(path) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            KeptOut.leave(file)
            raise BusyError("another run is writing to this lakehouse", where=location) from None
        yield KeptOut(file)


def require_lock(location: str) -> None:
    """Refuse a lock that a run of another user has left. This takes no lock.

    Raise DiskError.
    """
    folder = local_path(location)
    lock = None if folder is None else folder / "_millrace" / "lock"
    if lock is not None and lock.exists() and not os.access(lock, os.W_OK):
        raise _not_ours(lock)


def _not_ours(lock: Path) -> DiskError:
    """Return the error about a lock that a run of another user has left."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    return DiskError(
        f"user {user} can't write to files of a run of another user",
        where=str(lock),
        remedy=f"give it to {user}: chown -R {user} {shlex.quote(str(lock.parents[1]))}",
    )


def require_owner(location: str) -> None:
    """Refuse to write as root if the folder is another user's, whose runs would fail on the files.

    Raise ConfigError. If the folder doesn't exist yet, the nearest existing parent counts.
    """
    folder = local_path(location)
    if folder is None or os.geteuid() != 0:
        return
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if (owner := there.stat().st_uid) == 0:
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    raise ConfigError(
        f"this process runs as root, but the lakehouse's folder belongs to user {name}, who"
        " couldn't write to root's files",
        where=str(there),
        remedy=f"run it as that user: runuser -u {name} -- millrace …",
    )


def require_same_writer(plan: RunPlan, sink: str, prefix: str, written_by: TopicWriter) -> None:
    """Raise ConfigError if the plan isn't of the topics that are read now."""
    if plan.prefix != prefix:
        raise ConfigError(
            f"the {sink} belongs to topic.prefix {plan.prefix}",
            where=f"[{sink}]",
            remedy=f"give each topic.prefix its own {sink}",
        )
    if plan.written_by != written_by:
        raise ConfigError(
            f"the {sink} was created for topics written by {plan.written_by}",
            where=f"[{sink}] topics_written_by",
            remedy=f"give the topics of another writer their own {sink}",
        )


def changed_kinds(
    before: Mapping[str, TablePlan], wanted: Mapping[str, WantedTable]
) -> dict[str, ConfigError]:
    """Return tables whose configured source or kind has changed, and why this isn't possible."""
    return {
        name: ConfigError(
            f"{name} is made of {table.source}, kind {table.kind}; the configuration now makes it"
            f" of {request.source}, kind {request.kind}",
            where="[[lakehouse.tables]]",
            remedy="give the new one another name, or remove this Delta table and run once"
            " without it",
        )
        for name, request in wanted.items()
        if (table := before.get(name)) is not None
        and table.base
        and (table.source, table.kind) != (request.source, request.kind)
    }


def application(prefix: str, derived: str) -> str:
    """Return the id under which a derived table's commits have the numbers of their runs."""
    # Spark replaces ${…} in the value of a setting, and this becomes one.
    return f"millrace/{prefix}/{derived}".replace("$", "%24")


def foreign_table(path: str, run: int | None, expected: int) -> SinkError:
    """Return the error about a Delta table that differs from the plans. Run None: it is missing."""
    state = (
        "is missing" if run is None else f"has run {run}" if run else "wasn't written by Millrace"
    )
    return SinkError(
        f"the Delta table {state}, but the plan continues from run {expected}",
        where=path,
        remedy="if no other run is running, remove the Delta table: the next run writes it again",
    )


def log_folder(derived: Derived) -> Path | None:
    """Return the log of an existing Delta table on this machine; else None.

    Raise SinkUnreachableError if its folder can't be read.
    """
    if (folder := local_path(derived.path)) is None:
        return None
    with reachable(folder):
        return folder / LOG_FOLDER if (folder / LOG_FOLDER).is_dir() else None


def stranger_of_view(derived: Derived, prefix: str) -> SinkError | None:
    """Return why a view can't have its folder on this machine: another Delta table is in it.

    Raise a sink's error if the folder can't be read.
    """
    log = log_folder(derived)
    if log is None or _run_of(log, application(prefix, derived.name)) != 0:
        return None
    return stranger_in_views(derived)


def stranger_in_views(derived: Derived) -> SinkError:
    """Return the error about a Delta table in a view's folder that no run of views created."""
    return SinkError(
        f"the folder of view {derived.name} has a Delta table that no run of views created",
        where=derived.path,
        remedy="give the view another name, or remove the Delta table",
    )


def foreign_tables(
    tables: Mapping[str, Derived], plan: RunPlan | None, prefix: str
) -> Iterator[MillraceError]:
    """Yield why the next run would refuse Delta tables on this machine that others changed.

    ``plan`` is the last one: its own commit to a table may exist.
    """
    begun = plan.all_tables if plan is not None else {}
    for name, derived in sorted(tables.items()):
        base = begun[name].base if name in begun else 0
        expected = {base, plan.run} if plan is not None and name in begun else set()
        try:
            if (log := log_folder(derived)) is None:
                continue
            run = _run_of(log, application(prefix, name))
        except MillraceError as error:
            yield error
            continue
        if run is None and expected:
            continue
        if run not in expected or (run == 0 == base):
            yield foreign_table(derived.path, run or 0, base)


def _run_of(log: Path, of: str) -> int | None:
    """Return the last run in the newest commits of a Delta table. 0: none, None: unknown.

    Older runs are only in a checkpoint, which needs Spark. Raise SinkError if a commit can't be
    read.
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers
    """
    files = LocalFiles(log)
    names = files.names()
    for commit in sorted((name for name in names if name.endswith(".json")), reverse=True):
        try:
            # Only a line feed ends a line: values contain other line breaks unescaped.
            lines = (files.read(commit) or "").split("\n")
            actions = [json.loads(line) for line in lines if line.strip()]
            runs = [int(each["txn"]["version"]) for each in actions if _is_of(each, of)]
        except (ValueError, LookupError, TypeError):
            raise SinkError(
                "the log of a Delta table is damaged: a commit can't be read",
                where=str(log / commit),
                remedy="restore the file from a backup; or remove the Delta table: the next run"
                " writes it again from what the log has",
            ) from None
        if runs:
            return runs[-1]
    return None if "_last_checkpoint" in names else 0


def _is_of(action: dict[str, dict[str, object]], application: str) -> bool:
    """Whether an action of a commit is a transaction of an application."""
    return "txn" in action and action["txn"]["appId"] == application
