"""PostgreSQL's text of an array → its elements' texts, nested as the array is.

It is a separate reader, as a comparison shares none with the code that it checks.
https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
"""

from typing import Union

Element = Union["Nested", str, None]
"""An element: a text, NULL, or a list of elements."""
Nested = list[Element]


def elements(text: str, delimiter: str = ",") -> Nested:
    """Return the elements.

    Raise ValueError for an array with explicit bounds, and for any other text.
    """
    items, end = _list(text, 0, delimiter)
    if end != len(text):
        raise ValueError("more than an array")
    return items


def _list(text: str, start: int, delimiter: str) -> tuple[Nested, int]:
    """Return the list that begins at ``start``, and its end."""
    if text[start : start + 1] != "{":
        raise ValueError("not an array")
    items: Nested = []
    at = start + 1
    if text[at : at + 1] == "}":
        return items, at + 1
    while True:
        item: Element
        if text[at : at + 1] == "{":
            item, at = _list(text, at, delimiter)
        elif text[at : at + 1] == '"':
            item, at = _quoted(text, at + 1)
        else:
            item, at = _bare(text, at, delimiter)
        items.append(item)
        behind = text[at : at + 1]
        at += 1
        if behind == "}":
            return items, at
        if behind != delimiter:
            raise ValueError("neither a delimiter nor an end")


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the text up to the closing quotation mark."""
    item = list[str]()
    while at < len(text) and text[at] != '"':
        at += text[at] == "\\"
        item.append(text[at : at + 1])
        at += 1
    if at >= len(text):
        raise ValueError("a quotation mark is missing")
    return "".join(item), at + 1


def _bare(text: str, at: int, delimiter: str) -> tuple[str | None, int]:
    end = at
    while end < len(text) and text[end] not in {delimiter, "}"}:
        end += 1
    item = text[at:end]
    return (None if item == "NULL" else item), end
