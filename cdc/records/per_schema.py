"""A Connect schema object → what was made of it once: plans of converters and transforms.

Schemas live as long as a version of a table, and there are few. Those that a transform infers from
each payload come and go: hence the bound.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from cdc.records.connect import Schema

T = TypeVar("T")


class PerSchema(Generic[T]):
    """Calls ``make`` once per schema object, and remembers up to ``size_max`` of them."""

    def __init__(self, make: Callable[[Schema], T], *, size_max: int = 1_024) -> None:
        self._make = make
        self._made: dict[int, tuple[Schema, T]] = {}
        self._size_max = size_max

    def __call__(self, schema: Schema) -> T:
        """Return what belongs to this very object (an equal one is made anew)."""
        found = self._made.get(id(schema))
        if found is None:
            if len(self._made) >= self._size_max:
                self._made.clear()
            # The schema is kept beside it: while it lives, nothing else has its id.
            found = self._made[id(schema)] = (schema, self._make(schema))
        return found[1]
