"""COPY's text format, line by line."""

import pytest

from snapshots.copied_rows import parse


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"\n", (b"",)),
        (b"1\tx\n", (b"1", b"x")),
        (b"\\N\t\n", (None, b"")),
        (b"\\\\N\ta\\\\\n", (b"\\N", b"a\\")),
        (rb"a\tb\nc\rd\be\ff\vg" + b"\n", (b"a\tb\nc\rd\be\ff\vg",)),
        (rb"\\\\n" + b"\n", (b"\\\\n",)),
        (rb"\\." + b"\n", (rb"\.",)),
        ("é\t🦆\n".encode(), ("é".encode(), "🦆".encode())),
        (b"x\\\\\\N\n", (b"x\\N",)),
    ],
)
def test_lines(line: bytes, row: tuple[bytes | None, ...]) -> None:
    assert parse(line) == row
