"""The flights of New York -> their log, and documents of a flight with all that belongs to it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from benchmarks.scene import say
from deploy.demo import flights
from deploy.demo.proof import connect

TABLES: Final = r"public\.(airlines|airports|planes|weather|flights)"
DOCUMENT: Final[dict[str, Any]] = {
    "name": "flights",
    "table": "public.flights",
    "exclude": ["year", "month", "day"],
    "embed": [
        {"field": "airline", "table": "public.airlines", "on": {"carrier": "carrier"}},
        {"field": "from", "table": "public.airports", "on": {"faa": "origin"}},
        {"field": "to", "table": "public.airports", "on": {"faa": "dest"}},
        {"field": "plane", "table": "public.planes", "on": {"tailnum": "tailnum"}},
        {
            "field": "weather",
            "table": "public.weather",
            "on": {"origin": "origin", "time_hour": "time_hour"},
            "include": ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "visib"],
        },
    ],
}
"""All that the tables have to tell of a flight."""
PLAIN: Final[dict[str, Any]] = {
    "name": "flights",
    "table": "public.flights",
    "embed": [
        {"field": "airline", "table": "public.airlines", "on": {"carrier": "carrier"}},
        {"field": "airport", "table": "public.airports", "on": {"faa": "origin"}},
        {"field": "plane", "table": "public.planes", "on": {"tailnum": "tailnum"}},
    ],
}
"""What pgsync can make, too: it knows a table at one place of a tree only."""
NODES: Final[dict[str, Any]] = {
    "table": "flights",
    "children": [
        {
            "table": table,
            "label": label,
            "relationship": {
                "variant": "object",
                "type": "one_to_one",
                "foreign_key": {"child": [own], "parent": [outer]},
            },
        }
        for table, label, own, outer in (
            ("airlines", "airline", "carrier", "carrier"),
            ("airports", "airport", "faa", "origin"),
            ("planes", "plane", "tailnum", "tailnum"),
        )
    ],
}
"""The same, in its words."""
_NUMBERED: Final = """
    ALTER TABLE flights DROP CONSTRAINT flights_pkey;
    ALTER TABLE flights ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
    CREATE INDEX ON flights (carrier); CREATE INDEX ON flights (tailnum);
"""
"""pgsync follows rows by one column, and asks for indexes of those that join."""


def load(source: Mapping[str, str], rows: int, *, numbered: bool = False) -> None:
    """Load the tables into a database; ``numbered`` gives flights a number for a key."""
    flights.load(source, flights_limit=rows)
    with connect(source) as connection:
        if numbered:
            connection.execute(_NUMBERED)
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
    say(f"  {rows:,} flights are in the database {source['dbname']}")


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document as either may write it: nulls or none, numbers or their texts, moments."""
    return {
        name: plain(value) if isinstance(value, Mapping) else _same(value)
        for name, value in document.items()
        if value is not None and not name.startswith("_")
    }


def _same(value: Any) -> Any:
    for read in (float, datetime.fromisoformat):
        try:
            return read(value)
        except (TypeError, ValueError):
            continue
    return value
