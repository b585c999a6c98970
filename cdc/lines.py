"""Text with what others have written in it → lines that are told apart from theirs.

A name, a value or a server's message may have line breaks, and go on as a remedy of ours would.
"""

import json


class Lines(str):
    """Text whose line breaks are all ours: what of it is foreign went through ``on_one_line``."""

    __slots__ = ()


def on_one_line(text: str) -> str:
    """The text, with its line breaks as JSON has them; those of Lines stay."""
    return text if isinstance(text, Lines) else text.replace("\n", "\\u000a")


def toml_text(text: str) -> str:
    """The text as a TOML string on one line: as in JSON, but without surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
