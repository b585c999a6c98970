"""What an index of joined documents has been given, as the progress index keeps it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.state import PositionField
from cdc.settings.search import Document
from sinks.run.plan import TableVersion


class Instant(BaseModel):
    """A cut of the lakehouse (the ``run`` that made it), and its version of each joined table."""

    model_config = ConfigDict(frozen=True)

    run: int
    cut: PositionField
    versions: dict[str, TableVersion]


class Target(BaseModel):
    """An index, by its name and its own identity, and what its documents are like.

    ``columns`` are the types of their columns by path, ``mapping`` is the server's. ``identities``
    are what each column of the joined tables is, which another one of its name isn't.
    """

    model_config = ConfigDict(frozen=True)

    index: str
    uuid: str
    definition: Document
    columns: dict[str, str]
    identities: dict[str, str] = {}
    mapping: dict[str, Any]


class Loading(BaseModel):
    """An index that is being loaded, part by part; ``done`` of its ``parts`` are in it.

    ``rows`` is about how many a part has (0: not known).
    """

    model_config = ConfigDict(frozen=True)

    target: Target
    parts: int
    done: int = 0
    rows: int = 0


class DocumentRecord(BaseModel):
    """The index that ``serves`` behind the alias, and one that is ``loading`` to take its place.

    Both have all documents as they are ``at`` a cut; the latter those of the parts that are done.
    A run that brings them ``to`` a later one may have died in the middle: that is done again first.
    Where the one that serves can't be brought there, it is ``frozen``.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    generation: int = 0
    serves: Target | None = None
    frozen: bool = False
    loading: Loading | None = None
    at: Instant | None = None
    to: Instant | None = None
    ts_ms: int = 0

    @property
    def targets(self) -> list[Target]:
        """The indexes that changes are written to."""
        serving = [self.serves] if self.serves is not None and not self.frozen else []
        return serving + ([self.loading.target] if self.loading is not None else [])
