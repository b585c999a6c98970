"""Kinds of DDL for the partitions of ``events``: each takes over a number's bounds and name."""

from tests.ddl_chaos.shapes import PARTITION_IDS, PARTITIONS, filled
from tests.ddl_chaos.source import Source


def _slots(source: Source) -> set[int]:
    """The numbers of the partitions that are there."""
    rows = source.ask(
        "SELECT right(inhrelid::regclass::text, 1)::int FROM pg_inherits"
        " WHERE inhparent = 'events'::regclass AND inhrelid::regclass::text LIKE 'events%'"
    )
    return {number for (number,) in rows}


def _slot(source: Source) -> int:
    return int(source.chance.choice(sorted(_slots(source))))


def _free_slot(source: Source) -> int:
    """A number that no partition has; where there is none, one is emptied before, and dropped."""
    slots = _slots(source)
    if len(slots) < PARTITIONS:
        return next(number for number in range(PARTITIONS) if number not in slots)
    number = _slot(source)
    source.ddl(
        f"LOCK TABLE events; DELETE FROM events_{number}; DROP TABLE events_{number}", "events"
    )
    source.pause()
    return number


def _bounds(number: int) -> str:
    first, end = number * PARTITION_IDS, (number + 1) * PARTITION_IDS
    return f"FOR VALUES FROM ({first}) TO ({end})"


def _attach(number: int) -> str:
    return f"ALTER TABLE events ATTACH PARTITION events_{number} {_bounds(number)}"


def _like_a_partition(source: Source, name: str, number: int) -> None:
    source.ddl(f"CREATE TABLE {name} (LIKE events INCLUDING ALL)")
    first = number * PARTITION_IDS + source.chance.randint(0, 20)
    source.ddl(filled("events", name, first, PARTITION_IDS // 2))


def attached(source: Source) -> None:
    number = _free_slot(source)
    _like_a_partition(source, f"events_{number}", number)
    source.ddl(_attach(number), "events")


def detached_and_attached(source: Source) -> None:
    number = _slot(source)
    first = number * PARTITION_IDS
    source.ddl(f"ALTER TABLE events DETACH PARTITION events_{number}", "events")
    source.pause()
    source.ddl(f"DELETE FROM events_{number} WHERE id BETWEEN {first} AND {first + 20}")
    source.ddl(f"UPDATE events_{number} SET n = n + 1 WHERE id % 3 = 0")
    source.ddl(filled("events", f"events_{number}", first + 90, 10))
    source.pause()
    source.ddl(_attach(number), "events")


def exchanged(source: Source) -> None:
    """Another one, with other rows, takes its bounds and its name."""
    number = _slot(source)
    name = f"events_{number}"
    _like_a_partition(source, "other", number)
    source.ddl(
        f"ALTER TABLE events DETACH PARTITION {name}; DROP TABLE {name};"
        f" ALTER TABLE other RENAME TO {name}; {_attach(number)}",
        "events",
    )


def new_and_truncated(source: Source) -> None:
    """The stream has its first rows, and not their end."""
    number = _free_slot(source)
    name, first = f"events_{number}", number * PARTITION_IDS
    source.ddl(f"CREATE TABLE {name} PARTITION OF events {_bounds(number)}")
    source.ddl(filled("events", name, first, 50), "events")
    source.pause()
    source.ddl(f"TRUNCATE {name}", "events")
    source.ddl(filled("events", name, first + 40, 30))


def unlogged_and_logged(source: Source) -> None:
    name = f"events_{_slot(source)}"
    source.ddl(f"ALTER TABLE {name} SET UNLOGGED", "events")
    source.pause()
    source.ddl(f"UPDATE {name} SET n = n + 1 WHERE id % 3 = 0")
    source.changes("events")
    source.pause()
    source.ddl(f"ALTER TABLE {name} SET LOGGED", "events")


def truncated(source: Source) -> None:
    number = _slot(source)
    source.ddl(f"TRUNCATE events_{number}", "events")
    source.ddl(filled("events", f"events_{number}", number * PARTITION_IDS, 30))
