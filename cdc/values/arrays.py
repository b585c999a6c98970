r"""PostgreSQL's text of an array → nested lists of its elements' texts.

``{1,NULL,"a \"quoted\" one"}``, nested braces for more dimensions, an optional ``[2:3]=`` in
front for lower bounds other than 1, which is dropped. Anything else is a ValueError.
https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
"""

import re
from collections.abc import Callable
from typing import Any

DIMENSIONS_MAX = 6
"""PostgreSQL's own limit (MAXDIM)."""

_BOUNDS = re.compile(rb"(?:\[-?\d+:-?\d+\]){1,6}=")
_QUOTED = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_BARE = {delimiter: re.compile(rb'[^{}"\\' + delimiter + rb"]+") for delimiter in (b",", b";")}
_UNESCAPED = {
    delimiter: re.compile(rb'"[^"\\]*+"|[^{}"\\' + delimiter + rb"]++") for delimiter in _BARE
}
"""An element that is written as it is, in quotes or bare."""
_LIST = {
    delimiter: re.compile(rb"\{(?:%b)(?:%b(?:%b))*+\}" % (item.pattern, delimiter, item.pattern))
    for delimiter, item in _UNESCAPED.items()
}
"""One dimension of such elements: an array of texts with spaces in them, most often."""


def elements(value: bytes, element: Callable[[bytes], Any], delimiter: bytes = b",") -> list[Any]:
    """The array's elements, each through ``element``; NULL is None; nested as the array is.

    ``delimiter`` is pg_type.typdelim of the element type: a semicolon for box, else a comma.
    """
    parts = flat(value, delimiter)
    if parts is not None:
        return [None if part == b"NULL" else element(part) for part in parts]
    if _LIST[delimiter].fullmatch(value):
        return [
            element(item[1:-1]) if item[0] == 0x22 else None if item == b"NULL" else element(item)
            for item in _UNESCAPED[delimiter].findall(value)
        ]
    if value[:1] == b"[":
        bounds = _BOUNDS.match(value)
        if bounds is None:
            raise ValueError("not an array's bounds")
        value = value[bounds.end() :]
    return _nested(value, element, delimiter)


def flat(value: bytes, delimiter: bytes) -> list[bytes] | None:
    """The elements of an array of one dimension without quotes and bounds, the usual case."""
    if b'"' in value or value.rfind(b"{") != 0 or b"\\" in value:
        return None
    if value.find(b"}") != len(value) - 1:
        return None
    if value == b"{}":
        return []
    parts = value[1:-1].split(delimiter)
    if b"" in parts:
        raise ValueError("an empty element without quotes")
    return parts


def _nested(value: bytes, element: Callable[[bytes], Any], delimiter: bytes) -> list[Any]:
    """Read with a stack of open lists: every turn of the loop takes at least one byte."""
    if value[:1] != b"{":
        raise ValueError("not an array")
    if value == b"{}":
        return []
    root: list[Any] = []
    stack = [root]
    offset = 1
    while stack:
        if value[offset : offset + 1] == b"{":
            if len(stack) == DIMENSIONS_MAX:
                raise ValueError("too many dimensions")
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
            offset += 1
            continue
        item, offset = _item(value, offset, element, delimiter)
        stack[-1].append(item)
        while stack and value[offset : offset + 1] == b"}":
            stack.pop()
            offset += 1
        if stack:
            if value[offset : offset + 1] != delimiter:
                raise ValueError("neither a delimiter nor an end")
            offset += 1
    if offset != len(value):
        raise ValueError("more after the array's end")
    return root


def _item(
    value: bytes, offset: int, element: Callable[[bytes], Any], delimiter: bytes
) -> tuple[Any, int]:
    quoted = _QUOTED.match(value, offset)
    if quoted is not None:
        return element(_ESCAPE.sub(rb"\1", quoted[1])), quoted.end()
    bare = _BARE[delimiter].match(value, offset)
    if bare is None:
        raise ValueError("an empty element without quotes")
    return None if bare[0] == b"NULL" else element(bare[0]), bare.end()
