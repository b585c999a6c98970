"""A member of a group, as a process of its own: it notes each change that it has processed."""

import sys
from pathlib import Path

from millrace import changes


def main(config: str, group: str, notes: str) -> None:
    """Run until a signal comes."""
    with Path(notes).open("a", encoding="utf-8") as file, changes(config, group=group) as stream:
        for change in stream:
            file.write(f"{change.row['id']} {change.row['n']}\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
