"""Text that includes foreign text → lines that can't be confused with ours.

A name, a value or a server's message can have line breaks, and continue like a remedy of ours.
"""

import json
from collections.abc import Iterable
from typing import Final

NAMED_MAX: Final = 5


class Lines(str):
    """Text whose line breaks are all ours. Foreign parts went through ``on_one_line``."""

    __slots__ = ()


def on_one_line(text: str) -> str:
    """Return the text with its line breaks escaped as in JSON. Those of Lines stay."""
    return text if isinstance(text, Lines) else text.replace("\n", "\\u000a")


def name_first(names: Iterable[object], between: str = ", ") -> str:
    """Name the first ones of many, and say how many others there are."""
    texts = [*map(str, names)]
    more = f" … and {len(texts) - NAMED_MAX:,} more" if len(texts) > NAMED_MAX else ""
    return between.join(texts[:NAMED_MAX]) + more


def toml_text(text: str) -> str:
    """Return the text as a TOML string on one line: as in JSON, but without surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
