"""A table's columns → how its documents are compared: a field's value as PostgreSQL's text.

Each value of a document becomes PostgreSQL's text of it, and one set of rules hashes both sides
(compaction/verify/rules.py). Here a numeric's text is compared unchanged. A value of another JSON
type, or in another form, becomes a text that no value has.

Two of the server's fields are compared as well. A document differs if its ``_id`` isn't that of its
key, or if its ``_version`` is after the instant.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from cdc.records.position import Lsn
from cdc.records.schema import Column
from compaction.verify.documents.lines import line_of
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule, compared_table
from compaction.verify.slices import Slice
from sinks.changes.shape import DerivedField, TableShape

DocumentText = Callable[[Any], str]
"""A field's value → PostgreSQL's text of it."""
_ID: Final = "_id"
_VERSION: Final = "_version"
_ID_BYTES_MAX: Final = 512
_HASHED: Final = "sha256:"
_INTEGERS: Final = frozenset({"int2", "int4", "int8", "oid"})
_FLOATS: Final = frozenset({"float4", "float8"})
_WORDS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
"""Numbers that are texts in JSON."""


class ComparedDocuments(NamedTuple):
    """How documents are compared: the ``source``'s side, and the ``documents``' side.

    Both have the same columns. A document's last two are ``_id`` and ``_version``. With a
    ``slice``, only its documents count.
    """

    source: ComparedTable
    documents: ComparedTable
    fields: tuple[tuple[str, DocumentText], ...]
    key: tuple[tuple[str, Column], ...]
    slice: Slice | None = None

    def is_within(self, source: Mapping[str, Any]) -> bool:
        """Whether a document counts, by the texts of its key."""
        if self.slice is None:
            return True
        fields = (self.fields[place] for place in self.documents.key)
        values = ((source.get(name), text_of) for name, text_of in fields)
        return self.slice.holds([None if v is None else text_of(v) for v, text_of in values])

    def line(self, source: Mapping[str, Any], id_: str, version: int, instant: Lsn) -> bytes:
        """Return a document as a line of COPY.

        ``id_`` and ``version`` are null if they are right.
        """
        texts = list[str | None]()
        for name, text_of in self.fields:
            value = source.get(name)
            texts.append(None if value is None else text_of(value))
        is_own = _is_id(id_, [(column, source.get(name)) for name, column in self.key])
        return line_of([*texts, None if is_own else id_, above(version, instant)])


def compared_documents(
    shape: TableShape, not_compared: Mapping[str, str], slice_: Slice | None = None
) -> ComparedDocuments:
    """Return how documents of a table's rows are compared, except some columns."""
    table = compared_table(shape, not_compared)
    by_name = {field.name: field for field in shape.fields}
    columns = [
        each._replace(name=field_of(each.source), rule=_rule(each.rule, by_name[each.name]))
        for each in table.columns
    ]
    kept = [by_name[each.name].column for each in table.columns]
    left_out = {field_of(by_name[name].column.name): why for name, why in table.left_out.items()}
    if not columns:
        nothing = ComparedTable((), (), left_out)
        return ComparedDocuments(nothing, nothing, (), ())
    key = tuple((columns[place].name, kept[place]) for place in table.key)
    # The source has no such columns: its side is null.
    own = [
        ComparedColumn(columns[0].source, name, _rule_of(Kind.NOTHING)) for name in (_ID, _VERSION)
    ]
    there = [each._replace(rule=_rule_of(Kind.TEXT)) for each in own]
    fields = [(each.name, _text_of(of)) for each, of in zip(columns, kept, strict=True)]
    return ComparedDocuments(
        ComparedTable((*columns, *own), table.key, left_out),
        ComparedTable((*columns, *there), table.key, left_out),
        tuple(fields),
        key,
        slice_,
    )


def above(version: int, instant: Lsn) -> str | None:
    """Return a document's version if it is after an instant."""
    return None if version <= instant else str(version)


def field_of(column: str) -> str:
    """Return the field of a column's values."""
    name = column.replace(".", "_")
    return f"x{name}" if name[:1] == "_" or not name.strip() else name


def _rule_of(kind: Kind) -> Rule:
    return Rule(kind, lambda value: value)


def _rule(rule: Rule, field: DerivedField) -> Rule:
    """Return the rule for a Delta table's column. For a numeric, documents have the text."""
    if field.column.type != "numeric" or field.column.array or field.nulled or field.hashed:
        return rule
    if rule.unfit and field.type.startswith("decimal"):
        return rule._replace(kind=Kind.CONVERTED, convert=_if_finite)
    return rule._replace(kind=Kind.TEXT, scale=0)


def _if_finite(text: bytes) -> bytes | None:
    return text if text[-1:].isdigit() else None


def _text_of(column: Column) -> DocumentText:
    if column.array:
        return partial(_array, _of_scalar(column, "point"), column.delimiter or ",")
    return _of_scalar(column)


def _of_scalar(column: Column, *as_they_are: str) -> DocumentText:
    """Return the form of one value. Types ``as_they_are`` have no special form."""
    if column.type in _INTEGERS:
        return _integer
    if column.type in _FLOATS:
        return _float
    return _text if column.type in as_they_are else _FORMS.get(column.type, _text)


def _other(value: Any) -> str:
    """Return a text that PostgreSQL has for no value."""
    return f"\0{json.dumps(value, ensure_ascii=False)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _other(value)


def _integer(value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _other(value)


def _float(value: Any) -> str:
    if isinstance(value, str):
        return value if value in _WORDS else _other(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if is_number else _other(value)


def _boolean(value: Any) -> str:
    return str(value)[0].lower() if isinstance(value, bool) else _other(value)


def _timestamp(value: Any) -> str:
    """Read ``2024-02-29T13:14:15.500000``."""
    if not isinstance(value, str) or value[10:11] != "T":
        return _other(value)
    return f"{value[:10]} {_time(value[11:])}"


def _timestamptz(value: Any) -> str:
    """Read the same, with a Z."""
    if not isinstance(value, str) or not value.endswith("Z"):
        return _other(value)
    return f"{_timestamp(value[:-1])}+00"


def _time(value: Any) -> str:
    """Return ``13:14:15.500000`` without zeros at its end."""
    if not isinstance(value, str):
        return _other(value)
    return value.rstrip("0").rstrip(".") if "." in value else value


def _bytes(value: Any) -> str:
    try:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    except (TypeError, ValueError, binascii.Error):
        return _other(value)


def _point(value: Any) -> str:
    """Read ``POINT (1.5 2)``."""
    if not isinstance(value, str) or not value.startswith("POINT ("):
        return _other(value)
    return value[6:].replace(" ", ",")


_FORMS: Final[dict[str, DocumentText]] = {
    "bool": _boolean,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "time": _time,
    "bytea": _bytes,
    "point": _point,
}
"""Types whose form in documents differs from PostgreSQL's text."""


def _array(text_of: DocumentText, delimiter: str, value: Any) -> str:
    """Write an array as PostgreSQL does, with all elements in quotes."""
    if not isinstance(value, list):
        return _other(value)
    texts = ("NULL" if each is None else _quoted(text_of(each)) for each in value)
    return f"{{{delimiter.join(texts)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _is_id(id_: str, key: Sequence[tuple[Column, Any]]) -> bool:
    """Whether an id is that of a document with such a key. True if it is unknown."""
    if any(column.array or column.type in _FLOATS or value is None for column, value in key):
        return True  # a number has several texts
    texts = [json.dumps(value) if isinstance(value, bool) else str(value) for _, value in key]
    text = texts[0]
    if len(texts) > 1:
        text = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    encoded = text.encode("utf-8", "surrogatepass")
    if 0 < len(encoded) <= _ID_BYTES_MAX and not text.startswith(_HASHED):
        return id_ == text
    return id_ == _HASHED + hashlib.sha256(encoded).hexdigest()
