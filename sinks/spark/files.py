"""A folder of small texts, on this machine or on any Hadoop file system."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from cdc.errors import DiskError, LogFormatError, SinkUnreachableError
from sinks.spark.errors import machine_error
from sinks.spark.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunState = TypeVar("RunState", bound=BaseModel)
_NEW: Final = ".new"
_WRITTEN_S: Final = 3600
"""After this time, a writer has finished its text, or has died."""


class DamagedError(LogFormatError):
    """A file has other contents than were written. One of a newer format doesn't count."""


class Files(Protocol):
    """A folder of small texts."""

    def names(self) -> list[str]:
        """Return the names of the existing files."""

    def read(self, name: str) -> str | None:
        """Return the text of a file. None: it doesn't exist."""

    def create(self, name: str, text: str) -> None:
        """Write a whole new file. Raise FileExistsError if it exists."""

    def replace(self, name: str, text: str) -> None:
        """Write a file, new or not."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def tidy(self) -> None:
        """Remove the remains of processes that died while they wrote."""


class LocalFiles:
    """A folder on a file system that Python sees."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of the existing files."""
        with reachable(self._folder), suppress(FileNotFoundError):
            return sorted(os.listdir(self._folder))  # noqa: PTH208 (names are what is asked for)
        return []

    def read(self, name: str) -> str | None:
        """Return the text of a file. None: it doesn't exist."""
        with reachable(self._folder), suppress(FileNotFoundError):
            return (self._folder / name).read_text(encoding="utf-8")
        return None

    def create(self, name: str, text: str) -> None:
        """Write a whole new file. Raise FileExistsError if it exists."""
        with self._written(text) as new:
            os.link(new, self._folder / name)

    def replace(self, name: str, text: str) -> None:
        """Write a file, new or not."""
        with self._written(text) as new:
            Path(new).replace(self._folder / name)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with reachable(self._folder):
            (self._folder / name).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the remains of processes that died while they wrote."""
        with reachable(self._folder):
            for path in self._folder.glob(f".*{_NEW}"):
                with suppress(FileNotFoundError):  # another process tidies up, too
                    if time.time() - path.stat().st_mtime > _WRITTEN_S:
                        path.unlink()

    @contextmanager
    def _written(self, text: str) -> Iterator[str]:
        """Yield a durable file with the text, under its own name."""
        with reachable(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=_NEW)
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
    """A folder on any Hadoop file system."""

    def __init__(self, spark: "SparkSession", folder: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._jvm = jvm
        self._conf = session.sessionState().newHadoopConf()
        self._store = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(session)
        self._folder = jvm.org.apache.hadoop.fs.Path(folder)
        self._files = self._folder.getFileSystem(self._conf)

    def names(self) -> list[str]:
        """Return the names of the existing files."""
        if not self._files.exists(self._folder):
            return []
        return sorted(entry.getPath().getName() for entry in self._files.listStatus(self._folder))

    def read(self, name: str) -> str | None:
        """Return the text of a file. None: it doesn't exist."""
        path = self._path(name)
        if not self._files.exists(path):
            return None
        lines = self._store.read(path, self._conf)
        return "\n".join(lines.apply(i) for i in range(lines.size()))

    def create(self, name: str, text: str) -> None:
        """Write a whole new file. Raise FileExistsError if it exists."""
        from py4j.protocol import Py4JJavaError

        try:
            self._write(name, text, overwrite=False)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in error.java_exception.getClass().getName():
                raise FileExistsError(name) from None
            raise machine_error(error, name) or SinkUnreachableError(
                f"can't write a file: {first_line(error)}", where=name
            ) from None

    def replace(self, name: str, text: str) -> None:
        """Write a file, new or not."""
        self._write(name, text, overwrite=True)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._files.delete(self._path(name), False)

    def tidy(self) -> None:
        """Do nothing: Delta's own writer of small files leaves no remains."""

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)

    def _write(self, name: str, text: str, *, overwrite: bool) -> None:
        self._files.mkdirs(self._folder)
        lines = self._jvm.java.util.ArrayList()
        lines.add(text)
        iterator = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
        self._store.write(self._path(name), iterator, overwrite, self._conf)


@contextmanager
def reachable(path: Path, but: type[OSError] | None = None) -> Iterator[None]:
    """Raise SinkUnreachableError for the file system's errors, ``but`` for one kind."""
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


def read_state(files: Files, name: str, kind: type[RunState], where: str) -> RunState | None:
    """Return a file's contents. None: it doesn't exist.

    Raise LogFormatError without a remedy; DamagedError if it isn't from a newer version.
    """
    try:
        text = files.read(name)
        return None if text is None else kind.model_validate_json(text)
    except UnicodeDecodeError:
        raise DamagedError("it isn't text", where=f"{where}/{name}") from None
    except ValidationError as error:
        first = error.errors()[0]
        of = LogFormatError if first["loc"][:1] == ("format",) else DamagedError
        raise of(first["msg"], where=f"{where}/{name}") from None
