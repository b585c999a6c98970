r"""A topic's name → another one, by a regular expression and a replacement as Java writes them.

In a replacement ``$1`` and ``${name}`` stand for groups, ``\`` keeps the next character as it is.
The expression must match the whole name; then its first match is replaced.
"""

import re
from collections.abc import Callable
from typing import Final

from cdc.settings.options import Options

Rename = Callable[[str], str | None]
"""A name → the new name, or None where the expression doesn't match."""

_TOKENS: Final = re.compile(r"\\(.)|\$\{([A-Za-z][A-Za-z0-9]*)\}|\$(\d+)|([^\\$]+)|(.)", re.DOTALL)


def renaming(options: Options, pattern: re.Pattern[str], option: str, text: str) -> Rename:
    """Make the function; ``option`` is the replacement's name, for messages."""
    parts = _parts(options, pattern, option, text)

    def replaced(match: re.Match[str]) -> str:
        return "".join(
            part if isinstance(part, str) else match.group(part[0]) or "" for part in parts
        )

    def rename(name: str) -> str | None:
        return pattern.sub(replaced, name, count=1) if pattern.fullmatch(name) else None

    return rename


def _parts(
    options: Options, pattern: re.Pattern[str], option: str, text: str
) -> list[str | tuple[int | str]]:
    """A replacement as literal texts and groups (in a tuple)."""
    parts: list[str | tuple[int | str]] = []
    for escaped, name, digits, literal, other in _TOKENS.findall(text):
        if escaped or literal:
            parts.append(escaped or literal)
        elif name:
            if name not in pattern.groupindex:
                raise options.wrong(option, f"names a group that isn't there: {name}")
            parts.append((name,))
        elif digits:
            number, rest = _group(digits, pattern.groups)
            if number > pattern.groups:
                raise options.wrong(option, f"names a group that isn't there: {number}")
            parts += [(number,), rest]
        else:
            raise options.wrong(option, f"has a {other} that stands for nothing")
    return parts


def _group(digits: str, groups: int) -> tuple[int, str]:
    """As many digits as make a group that is there; the others are text."""
    end = 1
    while end < len(digits) and int(digits[: end + 1]) <= groups:
        end += 1
    return int(digits[:end]), digits[end:]
