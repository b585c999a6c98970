"""The results of a check, in numbers and sentences."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.fixtures.pipeline import LogRecord

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "item": ("id",),
    "account": ("id",),
    "loose": (),
    "pair": ("a", "b"),
    "bulk": ("batch", "n"),
    "probe": ("id",),
}
"""The tables of a run, and their primary keys."""
_SHOWN_MAX: Final = 20


@dataclass(slots=True)
class Verdict:
    """Counts of what is wrong, and the first findings in words."""

    events: int = 0
    transactions: int = 0
    lost: int = 0
    duplicated: int = 0
    disordered: int = 0
    different: int = 0
    read_again: int = 0
    absent: int = 0
    """Large values that the final state lacks because the source couldn't be read in time."""
    shown: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the log is the source's history, once."""
        return not (self.lost or self.duplicated or self.disordered or self.different)

    def tell(self, text: str) -> None:
        """Keep it for people, if there aren't many already."""
        if len(self.shown) < _SHOWN_MAX:
            self.shown.append(text)


def begins_read(record: LogRecord) -> bool:
    """Whether it is no change of the stream, but lets go of rows that are read anew behind it."""
    return record.op == "t" and record.value is not None and record.value["source"]["txId"] is None


def table_of(record: LogRecord) -> str:
    """The table whose topic the record is in."""
    return record.topic.rpartition(".")[2]


def named(record: LogRecord) -> str:
    """A record as people find it again."""
    return (
        f"{record.op} of {record.key} at {record.position} in {record.topic}/{record.partition}"
        f" at offset {record.offset}"
    )
