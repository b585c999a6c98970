"""The Delta features of a merge → the readers that can't read the table then, for the user.

docs/reference/lakehouse.md has the table of readers, and
tests/integration/sinks/delta/test_open_tables.py reads with each.
"""

from collections.abc import Collection, Sequence
from typing import Final

from cdc.errors import SinkError

MAPPING: Final = "columnMapping"
VECTORS: Final = "deletionVectors"
WIDENING: Final = "typeWidening"
_KNOWN: Final = {
    VECTORS: ("deletion vectors", "deltalake's to_pyarrow_*"),
    MAPPING: ("column mapping", "deltalake's to_pyarrow_* and Polars"),
    WIDENING: ("type widening", "deltalake and Polars"),
}
"""Delta's name of a feature → our name, and the readers without it."""
_NAMES_MAX: Final = 3
_COMPATIBILITY: Final = 'compatibility = "readers"'


def warning(feature: str, tables: Sequence[str]) -> str:
    """Return one line: the tables that get a feature, and the readers without it."""
    what, readers = _KNOWN[feature]
    more = f" and {len(tables) - _NAMES_MAX:,} more" if len(tables) > _NAMES_MAX else ""
    return (
        f"{', '.join(tables[:_NAMES_MAX])}{more}: written with Delta's {what}, which {readers}"
        f" can't read; {_COMPATIBILITY} in [lakehouse] rewrites files instead"
        " (docs/reference/lakehouse.md#other-readers)"
    )


def require_readable(name: str, features: Collection[str]) -> None:
    """Raise SinkError if a table for other readers has features that they lack."""
    if lacking := [what for feature, (what, _) in _KNOWN.items() if feature in features]:
        raise SinkError(
            f"the table has {_COMPATIBILITY}, but was created without it, and has Delta's "
            + ", ".join(lacking),
            where=name,
            remedy='set compatibility = "delta" for it in [[lakehouse.tables]], or remove the Delta'
            " table: the next run then rebuilds it",
        )
