"""Text that includes foreign text → lines that can't be confused with ours.

A name, a value or a server's message can have line breaks, and continue like a remedy of ours.
"""

import json


class Lines(str):
    """Text whose line breaks are all ours. Foreign parts went through ``on_one_line``."""

    __slots__ = ()


def on_one_line(text: str) -> str:
    """Return the text with its line breaks escaped as in JSON. Those of Lines stay."""
    return text if isinstance(text, Lines) else text.replace("\n", "\\u000a")


def toml_text(text: str) -> str:
    """Return the text as a TOML string on one line: as in JSON, but without surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
