"""A view's tables at cuts → their versions, each opened once."""

from typing import TYPE_CHECKING

from cdc.errors import SinkError
from sinks.run.cuts import Instant
from sinks.run.summary import TableVersion
from sinks.views.pinned import PinnedSession
from sinks.views.sources import VIEWS, Sources

if TYPE_CHECKING:
    from sinks.delta.version import Version


class UnopenedError(SinkError):
    """A version of a view's table can't be opened."""


class OpenVersions:
    """Versions opened in a view's session. ``where`` is its place in the configuration."""

    def __init__(self, sources: Sources, session: PinnedSession, where: str) -> None:
        self._sources = sources
        self._session = session
        self._where = where
        self._versions: dict[tuple[str, TableVersion], Version] = {}

    def version(self, name: str, at: Instant) -> "Version":
        """Return a table at a cut. Raise UnopenedError."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from sinks.spark.errors import machine_error, spark_ended
        from sinks.spark.session import first_line

        key = (name, at.versions[name])
        if key not in self._versions:
            try:
                self._versions[key] = self._sources.version(self._session.spark, name, at)
            except (PySparkException, Py4JError) as error:
                if spark_ended(error) or machine_error(error, self._where):
                    raise
                raise UnopenedError(
                    f"can't read {name} as of run {at.run}: {first_line(error)}",
                    where=self._where,
                    remedy="if its Delta table is missing, write it again: `millrace rebuild"
                    + (
                        f" view {name.removeprefix(VIEWS)}`"
                        if name.startswith(VIEWS)
                        else " lakehouse`"
                    ),
                ) from None
        return self._versions[key]

    def at(self, instant: Instant) -> "dict[str, Version]":
        """Return all tables at a cut."""
        return {name: self.version(name, instant) for name in instant.versions}

    def columns(self, at: Instant) -> dict[str, str]:
        """Return all available columns' identities, types, and places in the key."""
        columns: dict[str, str] = {}
        for name in sorted(at.versions):
            version = self.version(name, at)
            for column, of in self._sources.columns(version, name).items():
                columns[f"{name}.{column}"] = f"{of.id} {of.type}".strip()
            for place, column in enumerate(self._sources.key(name, at), 1):
                kind = version.columns[column].dataType.simpleString()
                there = columns.get(f"{name}.{column}", kind)
                columns[f"{name}.{column}"] = f"{there} key {place}"
        return columns

    def size_bytes(self, at: Instant) -> int:
        """Return the size of all tables."""
        return sum(version.size_bytes for version in self.at(at).values())
