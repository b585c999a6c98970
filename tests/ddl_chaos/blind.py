"""`millrace run`, blind on purpose to one kind of change that the catalog shows.

The variable BLIND names the kind. A run that doesn't detect such a daemon is no test.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import Doubt, TableState
from cdc.tables.reads import TableReads
from cdc.tables.schemas import SchemaVersions
from cdc.tables.tables import Joined
from millrace import main
from snapshots import catalog_check, inspection
from snapshots.catalog_check import CatalogCheck
from snapshots.inspection import Finding

VARIABLE: Final = "BLIND"
_AT_ONCE_S: Final = (0.0, 0.1)


class Blindness(NamedTuple):
    """What isn't seen: ``kinds`` of DDL tell on it, with such pauses between their steps.

    ``reasons`` is a pattern: no table is doubtful for those that match. A ``function``, by its
    owner and the name it is called by, has one answer to everything.
    """

    kinds: tuple[str, ...]
    reasons: str = ""
    function: tuple[Any, str, Any] | None = None
    pauses_s: tuple[float, ...] = _AT_ONCE_S


BLINDNESSES: Final[Mapping[str, Blindness]] = {
    "labels": Blindness(("enum label", "enum label in a key"), r"labels of enum"),
    "labels and back": Blindness(("enum label and back",), r"renamed and renamed back"),
    "attributes": Blindness(
        ("attribute added or dropped",), r"attributes of composite type \S+ were changed$"
    ),
    "expressions": Blindness(
        ("generated column's expression",),
        # All rows are written then: three detectors see it.
        r"expression of a generated column|rewritten by an ALTER TABLE|without old rows",
    ),
    "publication": Blindness(("publication made again",), r"the publication was"),
    "options": Blindness(("inserts only for a while",), r"the publication's options"),
    "options and back": Blindness(
        ("inserts only for a while",), r"options were changed and changed back"
    ),
    "lists": Blindness(
        ("unpublished for a while", "row filter for a while"), r"how the publication lists"
    ),
    "lists and back": Blindness(
        ("table in another schema for a while",), r"lists the table was changed and changed back"
    ),
    "unlogged": Blindness(
        ("partition unlogged for a while", "unlogged for a while"),
        r"(is|was) unlogged",
        pauses_s=(7.0,),  # it is seen while it is so, and then again
    ),
    "rewrites": Blindness(("type with USING",), r"rewritten by an ALTER TABLE|rewritten or trunc"),
    "files": Blindness(("partition truncated",), r"new file without old rows"),
    "truncates": Blindness(("TRUNCATE unpublished",), r"the table has a new file without old rows"),
    "attached again": Blindness(
        ("partition detached and attached",), r"was detached and attached again"
    ),
    "exchanged": Blindness(("partition exchanged",), r"a partition was exchanged"),
    "attached": Blindness(("partition attached",), r"partitions were attached"),
    "new files": Blindness(("new partition truncated",), r"new partition was truncated"),
    "columns": Blindness(
        ("column made again",) * 12,  # where it was the last one, and its type tells nothing
        r"dropped and made again",
        function=(SchemaVersions, "made_again", []),
    ),
    "altered": Blindness(("column with a constant default",), r"columns were altered"),
    "names": Blindness(("table renamed for a while",), r"had another name, for a while"),
    "successors": Blindness(("tables swapped",), function=(catalog_check, "take_gone", Joined([]))),
    "old rows": Blindness(
        ("VACUUM FULL", "CLUSTER", "SET TABLESPACE") * 4,
        function=(inspection, "has_old_row", False),
    ),
    "empty partitions": Blindness(("empty partition",), function=(inspection, "is_empty", False)),
}
UNSHOWN: Final[Mapping[str, str]] = {
    "the key has other columns": ("merges refuse such a table, exit code 30"),
    "attributes of composite type … were changed and changed back": (
        "a composite value's text has no names of attributes, and a type that a table uses doesn't"
        " let its attributes have another type"
    ),
    "it left the publication or the lists, and came back": (
        "where the publication shows it, that is another reason; the lists are no DDL"
    ),
}
"""Reasons for a doubt that no DDL of ours needs, and why."""


def _go_blind(blindness: Blindness) -> None:
    if blindness.reasons:
        _doubt_nothing(re.compile(blindness.reasons))
    if blindness.function is None:
        return
    owner, name, answer = blindness.function

    def answered(*_arguments: object, **_named: object) -> Any:
        return answer

    setattr(owner, name, answered)


def _doubt_nothing(reasons: re.Pattern[str]) -> None:
    """Let no table be doubtful for these reasons; what the check has seen is noted all the same."""
    noted, differs = TableReads.doubt, CatalogCheck._differs

    def doubt(self: TableReads, table: TableName, doubt: Doubt, **update: object) -> list[Record]:
        if all(reasons.search(reason) for reason in doubt.reason.split("; ")):
            states = self._states
            return states.put(states[table].model_copy(update=update))
        return noted(self, table, doubt, **update)

    def of_the_others(
        self: CatalogCheck, state: TableState, finding: Finding, *about: Any
    ) -> list[Record]:
        """What is read follows from the causes: those that aren't seen have no part in it."""
        differences = finding.differences
        seen = tuple(cause for cause in differences.causes if not reasons.search(cause.reason))
        differences = replace(differences, causes=seen)
        return differs(self, state, finding._replace(differences=differences), *about)

    TableReads.doubt = doubt  # type: ignore[method-assign]
    CatalogCheck._differs = of_the_others  # type: ignore[assignment]


if __name__ == "__main__":
    _go_blind(BLINDNESSES[os.environ[VARIABLE]])
    main()
