"""COPY's CopyData, mutated, to the extension and to its model: the same records or error."""

import json
from typing import NamedTuple

from cdc.records.position import Lsn, Position
from cdc.records.schema import TableSchema
from cdc.stream.translation import Limits
from tests.fuzz.mutation import Mutator
from tests.fuzz.streams import OfTables
from tests.properties.cdc.compiled.test_copy import WAYS, Copied, copy_data, line, native, outcome
from tests.properties.cdc.compiled.test_stream import timeless


class Lines(NamedTuple):
    """Bytes, a table that they are of, and how its rows are told apart."""

    schema: TableSchema
    key: tuple[int, ...]
    stale: frozenset[bytes]
    extra: int
    limits: Limits
    data: bytes


class CopiedLines(OfTables):
    """Rows of random tables with columns of all types; one line or the whole mutated."""

    name = "copied"
    share = 2

    def make(self) -> Lines:
        """Make a few lines."""
        chance = self.random
        schema = chance.choice(self._schemas)
        extra = chance.choice((0, 0, 1))
        lines = [line(self._row(schema), (b"(0,1)",) * extra) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.8:
            number = chance.randrange(len(lines))
            lines[number] = Mutator(lines, chance).changed(lines[number])
        messages = [copy_data(line) for line in lines]
        data = b"".join(messages)
        if chance.random() < 0.2:
            data = Mutator(messages, chance).changed(data)
        key = tuple(range(chance.randint(0, min(2, len(schema.columns)))))
        stale = b"\0".join(lines[0].split(b"\t")[: len(key)])
        limits = Limits(chance.choice((1, 3, 1_000)), 1 << 20)
        return Lines(schema, key, frozenset({stale} if key else ()), extra, limits, data)

    def check(self, made: Lines) -> None:
        """Encode them both ways."""
        outcomes = []
        for way in WAYS:
            encoder = native(made.schema, compacted=bool(made.schema.key))
            options = {"key": made.key, "stale": made.stale, "extra": made.extra}
            copied = Copied(way, encoder, Position(1, Lsn(1), 0), 1, **options)
            outcomes.append(outcome(copied, made.data, made.limits))
        (fast, *fast_rest), (pure, *pure_rest) = outcomes
        assert fast_rest == pure_rest
        if timeless(fast, bytes) != timeless(pure, bytes):
            # A number that PostgreSQL wouldn't write so may be written in another, equal form.
            assert timeless(fast, json.loads) == timeless(pure, json.loads)
