"""A group's member, as its own process: it notes each change that it has processed."""

import sys
from collections.abc import Iterable
from pathlib import Path

from cdc.reader.events import ChangeEvent
from millrace import changes


def main(config: str, group: str, notes: str, transactions: str = "") -> None:
    """Run until a signal comes."""
    with Path(notes).open("a", encoding="utf-8") as file:

        def note(processed: Iterable[ChangeEvent]) -> None:
            file.write("".join(f"{change.row['id']} {change.row['n']}\n" for change in processed))
            file.flush()

        if transactions:
            with changes(config, group=group, transactions=True) as whole:
                for transaction in whole:
                    note(transaction)
        else:
            with changes(config, group=group) as stream:
                for change in stream:
                    note([change])


if __name__ == "__main__":
    main(*sys.argv[1:])
