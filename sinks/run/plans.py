"""Plans and their outcomes ⇄ files: ``<run, 20 digits>.json`` and ``<run>.done.json``."""

import fcntl
import hashlib
import os
import pwd
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from cdc.errors import BusyError, ConfigError, DiskError, LogFormatError, SinkUnreachableError
from sinks.changes.derived import local_path, runs_path
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import LastCheck, RunOutcome, TableVersion
from sinks.spark.errors import machine_error
from sinks.spark.private_files import own_folder
from sinks.spark.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RunState = TypeVar("RunState", bound=BaseModel)
_PLAN: Final = re.compile(r"(\d{20})\.json")
_CHECKED: Final = "checked.json"
_COMPACTED: Final = "compacted.json"
_LAST: Final = "last.json"


class Files(Protocol):
    """A folder of small texts."""

    def names(self) -> list[str]:
        """The names of the files that are there."""

    def read(self, name: str) -> str | None:
        """The text of a file, or None where there is none."""

    def create(self, name: str, text: str) -> None:
        """Write a new file whole; raises FileExistsError if there is one already."""

    def replace(self, name: str, text: str) -> None:
        """Write a file, new or not."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


class LocalFiles:
    """A folder on a file system that Python sees."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """The names of the files that are there."""
        with reachable(self._folder), suppress(FileNotFoundError):
            return sorted(os.listdir(self._folder))  # noqa: PTH208 (names are what is asked for)
        return []

    def read(self, name: str) -> str | None:
        """The text of a file, or None where there is none."""
        with reachable(self._folder), suppress(FileNotFoundError):
            return (self._folder / name).read_text(encoding="utf-8")
        return None

    def create(self, name: str, text: str) -> None:
        """Write a new file whole; raises FileExistsError if there is one already."""
        with self._written(text) as new:
            os.link(new, self._folder / name)

    def replace(self, name: str, text: str) -> None:
        """Write a file, new or not."""
        with self._written(text) as new:
            Path(new).replace(self._folder / name)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with reachable(self._folder):
            (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def _written(self, text: str) -> Iterator[str]:
        """A durable file with the text, under a name of its own."""
        with reachable(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".new")
        try:
            with reachable(self._folder, but=FileExistsError):
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                yield name
        finally:
            Path(name).unlink(missing_ok=True)


class HadoopFiles:
    """A folder on any file system of Hadoop's."""

    def __init__(self, spark: "SparkSession", folder: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._jvm = jvm
        self._conf = session.sessionState().newHadoopConf()
        self._store = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(session)
        self._folder = jvm.org.apache.hadoop.fs.Path(folder)
        self._files = self._folder.getFileSystem(self._conf)

    def names(self) -> list[str]:
        """The names of the files that are there."""
        if not self._files.exists(self._folder):
            return []
        return sorted(entry.getPath().getName() for entry in self._files.listStatus(self._folder))

    def read(self, name: str) -> str | None:
        """The text of a file, or None where there is none."""
        path = self._path(name)
        if not self._files.exists(path):
            return None
        lines = self._store.read(path, self._conf)
        return "\n".join(lines.apply(i) for i in range(lines.size()))

    def create(self, name: str, text: str) -> None:
        """Write a new file whole; raises FileExistsError if there is one already."""
        from py4j.protocol import Py4JJavaError

        try:
            self._write(name, text, overwrite=False)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in error.java_exception.getClass().getName():
                raise FileExistsError(name) from None
            raise machine_error(error, name) or SinkUnreachableError(
                f"a file can't be written: {first_line(error)}", where=name
            ) from None

    def replace(self, name: str, text: str) -> None:
        """Write a file, new or not."""
        self._write(name, text, overwrite=True)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._files.delete(self._path(name), False)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)

    def _write(self, name: str, text: str, *, overwrite: bool) -> None:
        self._files.mkdirs(self._folder)
        lines = self._jvm.java.util.ArrayList()
        lines.add(text)
        iterator = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
        self._store.write(self._path(name), iterator, overwrite, self._conf)


@contextmanager
def one_at_a_time(location: str) -> Iterator[None]:
    """Keep a second run on this machine out; raises BusyError.

    That is for speed and clear words only: what makes two runs safe is each table's transaction.
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
            raise BusyError(
                "another run is applying the log to this lakehouse", where=location
            ) from None
        yield


def require_lock(location: str) -> None:
    """Refuse a lock that a run of another user has left; takes it from nobody.

    Raises DiskError.
    """
    folder = local_path(location)
    lock = None if folder is None else folder / "_millrace" / "lock"
    if lock is not None and lock.exists() and not os.access(lock, os.W_OK):
        raise _not_ours(lock)


def _not_ours(lock: Path) -> DiskError:
    """What to say of a lock that a run of another user has left."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    return DiskError(
        f"user {user} may not write what a run of another user has left",
        where=str(lock),
        remedy=f"give it to {user}: chown -R {user} {shlex.quote(str(lock.parents[1]))}",
    )


def require_owner(location: str) -> None:
    """Refuse to write as root where the folder is another user's, whose runs would fail by it.

    Raises ConfigError. Of a folder that isn't there yet, the nearest one above it counts.
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
        f"this runs as root, and the lakehouse's folder belongs to user {name}, who couldn't write"
        " what root makes in it",
        where=str(there),
        remedy=f"run it as that user: runuser -u {name} -- millrace …",
    )


@contextmanager
def reachable(path: Path, but: type[OSError] | None = None) -> Iterator[None]:
    """Raise SinkUnreachableError for what the file system refuses, ``but`` for one kind."""
    try:
        yield
    except OSError as error:
        if but is not None and isinstance(error, but):
            raise
        if (of_disk := DiskError.of(error, "the lakehouse can't be read or written")) is not None:
            raise of_disk from None
        raise SinkUnreachableError(
            f"the lakehouse can't be read or written: {error.strerror}", where=str(path)
        ) from None


class LastPlan(BaseModel):
    """The number of a plan that exists; later ones follow it without a gap."""

    run: int


class CompactedTables(BaseModel):
    """Each table after its last compaction: the run that it has, and a version that lasts."""

    tables: dict[str, tuple[int, TableVersion]] = {}


class Plans:
    """The plans of a lakehouse, or of any target that may keep them in a folder."""

    def __init__(self, files: Files, where: str) -> None:
        self._files = files
        self._where = where

    def last(self) -> RunPlan | None:
        """The newest plan, finished or not."""
        try:
            last = self._parse(LastPlan, _LAST)
        except LogFormatError:  # half written, where a file can't be replaced at once
            last = None
        newest = self.plan_of(last.run) if last is not None else None
        if newest is None:
            runs = self.runs()
            return self.plan_of(runs[-1]) if runs else None
        while (later := self.plan_of(newest.run + 1)) is not None:
            newest = later
        return newest

    def plan_of(self, run: int) -> RunPlan | None:
        """The plan of that number, if there is one."""
        return self._parse(RunPlan, _plan_name(run))

    def runs(self) -> list[int]:
        """The numbers of all plans, ascending."""
        matches = (_PLAN.fullmatch(name) for name in self._files.names())
        return sorted(int(match[1]) for match in matches if match)

    def outcome(self, plan: RunPlan) -> RunOutcome | None:
        """How a plan ended, if it did."""
        return self.outcome_of(plan.run)

    def outcome_of(self, run: int) -> RunOutcome | None:
        """How the plan of that number ended, if there is one, and it did."""
        return self._parse(RunOutcome, _done_name(run))

    def start(self, plan: RunPlan) -> None:
        """Make the plan the next one; raises BusyError if another run was first."""
        try:
            self._files.create(_plan_name(plan.run), plan.model_dump_json())
        except FileExistsError:
            raise BusyError(f"another run has made plan {plan.run}", where=self._where) from None
        self._files.replace(_LAST, LastPlan(run=plan.run).model_dump_json())

    def finish(self, outcome: RunOutcome) -> None:
        """Record that nothing of the plan is under way any more."""
        self._files.replace(_done_name(outcome.run), outcome.model_dump_json())

    def checked(self) -> LastCheck:
        """When a run last found nothing to do."""
        return self._parse(LastCheck, _CHECKED) or LastCheck()

    def check(self, check: LastCheck) -> None:
        """Record that there was nothing to do."""
        self._files.replace(_CHECKED, check.model_dump_json())

    def compacted(self) -> CompactedTables:
        """Where compaction has left the tables."""
        return self._parse(CompactedTables, _COMPACTED) or CompactedTables()

    def compact(self, tables: dict[str, tuple[int, TableVersion]]) -> None:
        """Record where it has left some."""
        compacted = CompactedTables(tables={**self.compacted().tables, **tables})
        self._files.replace(_COMPACTED, compacted.model_dump_json())

    def forget(self, before_run: int) -> int:
        """Remove the plans with a lower number; the number of those that were."""
        old = [run for run in self.runs() if run < before_run]
        for run in old:
            self._files.remove(_done_name(run))
            self._files.remove(_plan_name(run))
        return len(old)

    def _parse(self, kind: type[RunState], name: str) -> RunState | None:
        """A plan, an outcome and the like; raises LogFormatError where it isn't one of ours."""
        try:
            text = self._files.read(name)
            return None if text is None else kind.model_validate_json(text)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
        except UnicodeDecodeError:
            why = "it isn't text"
        raise LogFormatError(
            f"a run's state can't be read: {why}",
            where=f"{self._where}/{name}",
            remedy="if a newer Millrace has written it, run that one; if it is damaged, put it back"
            " from a backup",
        )


def lakehouse_plans(location: str, session: Callable[[], "SparkSession"]) -> Plans:
    """The plans of a lakehouse; ``session`` is called where its file system needs the JVM."""
    folder = local_path(location)
    files: Files = (
        HadoopFiles(session(), runs_path(location))
        if folder is None
        else LocalFiles(folder / "_millrace" / "runs")
    )
    return Plans(files, runs_path(location))


def _plan_name(run: int) -> str:
    return f"{run:020}.json"


def _done_name(run: int) -> str:
    return f"{run:020}.done.json"


def as_compacted(
    inherited: TableVersion, table: TablePlan, compacted: tuple[int, TableVersion] | None
) -> TableVersion:
    """The version of a table that nothing came for; where compaction has left it, if it has."""
    if compacted is None or compacted[0] != table.base or compacted[1].id != inherited.id:
        return inherited
    return max(inherited, compacted[1], key=lambda version: version.version)
