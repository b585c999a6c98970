"""Names and texts → small files beside the tables: plans, made once and by one run only.

A local lakehouse is read and written by plain Python, so that a run with nothing to do needs no
JVM. Any other file system goes through Delta's own LogStore, which knows how to create a file that
must not exist yet on each of them.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from cdc.errors import BusyError, SinkUnreachableError
from sinks.changes.paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        try:
            return sorted(os.listdir(self._folder))  # noqa: PTH208 (names are what is asked for)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreachable(self._folder, error) from None

    def read(self, name: str) -> str | None:
        """The text of a file, or None where there is none."""
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreachable(self._folder, error) from None

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
        (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def _written(self, text: str) -> Iterator[str]:
        """A durable file with the text, under a name of its own."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".new")
        except OSError as error:
            raise _unreachable(self._folder, error) from None
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            yield name
        except FileExistsError:
            raise
        except OSError as error:
            raise _unreachable(self._folder, error) from None
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
            raise SinkUnreachableError(
                f"a file can't be written: {error.java_exception.getMessage()}", where=name
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
    folder = local_path(location)
    if folder is None:
        name = hashlib.sha256(location.encode()).hexdigest()[:16]
        path = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}-{name}.lock"
    else:
        path = folder / "_millrace" / "lock"
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(
                "another run is applying the log to this lakehouse", where=location
            ) from None
        yield


def _opened(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise _unreachable(path, error) from None


def _unreachable(path: Path, error: OSError) -> SinkUnreachableError:
    return SinkUnreachableError(
        f"the lakehouse can't be read or written: {error.strerror}", where=str(path)
    )
