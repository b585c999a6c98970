"""`millrace run`, broken on purpose: values aren't completed while a table is being read.

A test of resumed snapshots that doesn't miss them is no test.
"""

from cdc.tables.tables import Tables
from millrace import main

_reselects = Tables._reselects


def _never_while_reading(self: Tables, state: object) -> bool:
    asks = bool(getattr(state, "requests", ()))
    return not asks and _reselects(self, state)  # type: ignore[arg-type]


Tables._reselects = _never_while_reading  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
