"""`millrace run`, blind on purpose to one kind of change that the catalog shows.

The variable BLIND says which. A run that doesn't find such a daemon out is no test.
"""

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cdc.tables import doubts
from cdc.tables.schemas import SchemaVersions
from cdc.tables.tables import Joined
from millrace import main
from snapshots import inspection
from snapshots.catalog_check import CatalogCheck

VARIABLE: Final = "BLIND"


class Blindness(NamedTuple):
    """What sees nothing: a function, by the name it is called by, and its answer to everything.

    DDL of these ``kinds`` tells on it.
    """

    owner: Any
    function: str
    answer: Any
    kinds: tuple[str, ...]


BLINDNESSES: Final[Mapping[str, Blindness]] = {
    "labels": Blindness(
        doubts, "_label_reason", "", ("enum label", "enum label and back", "enum label in a key")
    ),
    "attributes": Blindness(doubts, "_attribute_reason", "", ("attribute added or dropped",)),
    "publications": Blindness(
        doubts, "_publication_causes", (), ("inserts only for a while", "row filter for a while")
    ),
    "rewrites": Blindness(doubts, "_leaf_causes", (), ("unlogged for a while",)),
    "files": Blindness(doubts, "_unproven", (), ("partition truncated",)),
    "columns": Blindness(SchemaVersions, "made_again", (), ("column made again",)),
    "successors": Blindness(CatalogCheck, "_gone", Joined([]), ("tables swapped",)),
    "old rows": Blindness(
        inspection, "has_old_row", False, ("VACUUM FULL", "CLUSTER", "SET TABLESPACE")
    ),
}


def _go_blind(blindness: Blindness) -> None:
    def answer(*_arguments: object, **_named: object) -> Any:
        return blindness.answer

    assert hasattr(blindness.owner, blindness.function), "it has another name by now"
    setattr(blindness.owner, blindness.function, answer)


if __name__ == "__main__":
    _go_blind(BLINDNESSES[os.environ[VARIABLE]])
    main()
