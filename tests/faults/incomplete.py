"""`millrace run`, broken on purpose: it doesn't complete values while a table is being read.

A test of resumed snapshots that doesn't detect this daemon is no test.
"""

from cdc.tables.schemas import EncoderRegistry
from millrace import main

_reselects = EncoderRegistry._reselects


def _never_while_reading(self: EncoderRegistry, state: object) -> bool:
    asks = bool(getattr(state, "requests", ()))
    return not asks and _reselects(self, state)  # type: ignore[arg-type]


EncoderRegistry._reselects = _never_while_reading  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
