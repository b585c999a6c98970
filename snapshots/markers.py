"""A table's rows → the same, each with Debezium's marker of where in the snapshot it stands; pure.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html (snapshot events)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from snapshots.copytext import Row


class Marker(StrEnum):
    """Where in a snapshot a row stands: Debezium's ``source.snapshot``."""

    FIRST = "first"
    FIRST_IN_DATA_COLLECTION = "first_in_data_collection"
    TRUE = "true"
    LAST_IN_DATA_COLLECTION = "last_in_data_collection"
    LAST = "last"


MarkedRow = tuple[Row, Marker]


def marked(
    batches: Iterable[Sequence[Row]], *, first: bool, is_last: Callable[[], bool]
) -> Iterator[list[MarkedRow]]:
    """Mark the rows of one table, of the ``first`` one that is read.

    ``is_last`` tells whether no later table has a row; asked once, and only by a table that has
    one. A row is held back until it is known whether another one follows.
    """
    marker = Marker.FIRST if first else Marker.FIRST_IN_DATA_COLLECTION
    held: Row | None = None
    for batch in batches:
        done: list[MarkedRow] = []
        for row in batch:
            if held is not None:
                done.append((held, marker))
                marker = Marker.TRUE
            held = row
        if done:
            yield done
    if held is None:
        return
    if is_last():
        marker = Marker.LAST
    elif marker is not Marker.FIRST:
        marker = Marker.LAST_IN_DATA_COLLECTION
    yield [(held, marker)]
