"""Every type in every mode: JSON written directly is the value's, and kinds keep their promise."""

import re
from base64 import b64encode
from collections.abc import Callable
from datetime import date, datetime
from typing import Any, get_args, get_type_hints

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values import Codec, ValueKind, codec
from tests.fixtures.examples import examples
from tests.fixtures.json_values import json_text, written

NATIVE = ValueModes()
HINTS = get_type_hints(ValueModes)
CHOICES = {name: get_args(HINTS[name]) for name in NATIVE.__slots__ if get_args(HINTS[name])}
MODES = st.builds(
    ValueModes,
    **{name: st.sampled_from(values) for name, values in CHOICES.items()},
    include_unknown=st.booleans(),
    placeholder=st.just(NATIVE.placeholder),
    lossless=st.booleans(),
)

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORDS = st.text(CHARACTERS, max_size=10)
NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda n: f"{n:f}")
FLOATS = st.one_of(
    st.floats().map(lambda n: repr(n).replace("inf", "Infinity").replace("nan", "NaN")),
    st.sampled_from(["0", "-0", "1", "100000", "123456789012345", "1e+15", "1e-45", "0.0001"]),
    NUMBERS,
)
SPECIAL = st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "0044-03-15 10:00:00 BC"])
DATES = st.one_of(st.dates().map(str), SPECIAL, st.just("10000-01-01"))
STAMPS = st.one_of(
    st.datetimes().map(str),
    st.datetimes().map(lambda at: str(at.replace(microsecond=0))),
    st.datetimes().map(lambda at: str(at)[:23] if at.microsecond >= 1000 else str(at)[:19]),
    SPECIAL,
    st.just("294276-12-31 23:59:59.999999"),
)
BITS = st.text("01", max_size=70)
QUOTED = WORDS.map(lambda word: '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"')
HSTORES = st.lists(
    st.tuples(QUOTED, st.one_of(st.just("NULL"), QUOTED)).map("=>".join), max_size=3
).map(", ".join)
INTERVALS = st.tuples(*(st.integers(-99, 99),) * 6).map(
    lambda parts: "P{}Y{}M{}DT{}H{}M{}.000001S".format(*parts)
)

# type: texts of it, most of them well formed
TEXTS: dict[str, st.SearchStrategy[str]] = {
    "bool": st.sampled_from("tf"),
    "int2": st.integers(-(2**15), 2**15 - 1).map(str),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "float4": FLOATS,
    "float8": FLOATS,
    "numeric": st.one_of(NUMBERS, st.sampled_from(["NaN", "Infinity", "-Infinity", "5", "1e5"])),
    "money": st.integers(-(2**63), 2**63 - 1).map(
        lambda cents: f"{'-' * (cents < 0)}${abs(cents) // 100:,}.{abs(cents) % 100:02}"
    ),
    "bytea": st.binary().map(lambda raw: "\\x" + raw.hex()),
    "bit": BITS,
    "varbit": BITS,
    "date": DATES,
    "time": st.one_of(st.times().map(str), st.just("24:00:00")),
    "timetz": st.tuples(st.times(), st.sampled_from(["+00", "-05:30", "+01:02:03"])).map(
        lambda at: f"{at[0]}{at[1]}"
    ),
    "timestamp": STAMPS,
    "timestamptz": STAMPS.map(
        lambda text: text.replace(" BC", "") + "+00" + " BC" * ("BC" in text)
    ),
    "interval": st.one_of(INTERVALS, st.sampled_from(["PT0S", "infinity", "P1D", "P", "P1DT"])),
    "text": WORDS,
    "enum": WORDS,
    "name": WORDS,
    "uuid": st.uuids().map(str),
    "jsonb": WORDS,
    "hstore": HSTORES,
    "ltree": WORDS,
    "point": st.tuples(FLOATS, FLOATS).map(lambda at: f"({at[0]},{at[1]})"),
    "circle": st.tuples(FLOATS, FLOATS, FLOATS).map(lambda at: "<({},{}),{}>".format(*at)),
    "box": st.tuples(FLOATS, FLOATS, FLOATS, FLOATS).map(lambda at: "({},{}),({},{})".format(*at)),
    "geometry": st.binary(min_size=9).map(bytes.hex),
    "vector": st.lists(FLOATS, min_size=1, max_size=3).map(lambda of: f"[{','.join(of)}]"),
    "halfvec": st.lists(FLOATS, min_size=1, max_size=3).map(lambda of: f"[{','.join(of)}]"),
    "sparsevec": FLOATS.map(lambda number: f"{{1:{number}}}/3"),
    "cube": WORDS,
}


def array(items: list[Any]) -> str:
    return "{" + ",".join(_item(item) for item in items) + "}"


def _item(item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return array(item)
    if re.fullmatch(r"[a-z0-9.:+-]+", item):
        return str(item)
    return '"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"'


@st.composite
def cases(draw: st.DrawFn) -> tuple[Column, bytes]:
    """A column and a text that may be of its type."""
    kind = draw(st.sampled_from(sorted(TEXTS)))
    digits = draw(st.sampled_from([-1, 0, 3]))
    scale = draw(st.sampled_from([0, 2, 2, 3, -2]))
    modifier = (9 << 16 | scale & 0x7FF) + 4 if kind == "numeric" and digits >= 0 else digits
    is_array = draw(st.booleans())
    text = draw(TEXTS[kind])
    if is_array:
        elements = st.one_of(TEXTS[kind], st.none())
        items = draw(st.lists(elements, max_size=4))
        shape = draw(st.sampled_from(["flat", "flat", "nested", "bounds"]))
        text = array([items, items] if shape == "nested" and items else items)
        if shape == "bounds" and items:
            text = f"[0:{len(items) - 1}]={text}"
    column = Column(
        name="c",
        type=kind,
        type_oid=1,
        modifier=modifier,
        array=is_array,
        declared=kind,
        delimiter=draw(st.sampled_from([None, ","])),
        domain_elements=draw(st.booleans()),
    )
    return column, text.encode()


@settings(max_examples=examples(200))
@given(cases(), MODES)
def test_its_json_is_that_of_the_value(case: tuple[Column, bytes], modes: ValueModes) -> None:
    column, text = case
    found = codec(column, modes)
    assume(found is not None)
    assert found is not None
    try:
        expected = json_text(found.decode(text), found.schema)
    except (ValueError, LookupError):
        expected = None
    try:
        fragment = written(found, text)
    except (ValueError, LookupError):
        fragment = None
    assert fragment == expected


FLOAT_AS_IS = re.compile(r"-?([1-9][0-9]*|0)\.[0-9]*[1-9]")
FLOAT_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,14})")
STAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8})(?:\.([0-9]{1,6}))?")


def _float(text: str, _codec: Codec) -> str | None:
    if FLOAT_WHOLE.fullmatch(text):
        return text + ".0"
    few = len(text) <= 16 and not text.lstrip("-").startswith("0.0000")
    return text if few and FLOAT_AS_IS.fullmatch(text) else None


def _date(text: str, _codec: Codec) -> str | None:
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) is None:
        return None
    return str(date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal())


def _stamp(text: str, digits: int) -> str | None:
    match = STAMP.fullmatch(text)
    if match is None or len(match[2] or "") > digits:
        return None
    since = datetime.fromisoformat(match[1] + "+00:00") - datetime.fromisoformat(
        "1970-01-01T00:00:00+00:00"
    )
    seconds = since.days * 86_400 + since.seconds
    return str(seconds * 10**digits + int((match[2] or "").ljust(digits, "0")))


def _stamp_utc(text: str, one: Codec) -> str | None:
    match = STAMP.fullmatch(text.removesuffix("+00"))
    if match is None or not text.endswith("+00"):
        return None
    fraction = (match[2] or "").ljust(one.digits, "0")
    return f'"{match[1].replace(" ", "T")}{"." * bool(fraction)}{fraction}Z"'


ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{}",\\]+)', re.DOTALL)
LIST = re.compile(rf"\{{(?:{ELEMENT.pattern})(?:,(?:{ELEMENT.pattern}))*\}}", re.DOTALL)


def _array(text: str, one: Codec) -> str | None:
    """One dimension: what the element's kind says of each, escapes are of texts only."""
    if text == "{}":
        return "[]"
    if LIST.fullmatch(text) is None:
        return None
    assert one.schema.items is not None
    kind = one.kind.of_element
    element = one._replace(kind=kind, schema=one.schema.items)
    parts: list[str | None] = []
    for quoted, bare in (found.groups() for found in ELEMENT.finditer(text, 1)):
        if quoted is None:
            parts.append("null" if bare == "NULL" else PROMISES[kind](bare, element))
        elif "\\" not in quoted:
            parts.append(PROMISES[kind](quoted, element))
        elif kind is ValueKind.TEXT:
            parts.append(PROMISES[kind](re.sub(r"(?s)\\(.)", r"\1", quoted), element))
        else:
            return None
    known = [part for part in parts if part is not None]
    return f"[{','.join(known)}]" if len(known) == len(parts) else None


def _decimal(text: str, one: Codec) -> str | None:
    pattern = rf"-?[0-9]+\.[0-9]{{{one.digits}}}" if one.digits else r"-?[0-9]+"
    if re.fullmatch(pattern, text) is None:
        return None
    number = int(text.replace(".", ""))
    length = next(n for n in range(1, 99) if -(1 << 8 * n - 1) <= number < 1 << 8 * n - 1)
    return f'"{b64encode(number.to_bytes(length, "big", signed=True)).decode()}"'


def _matching(pattern: str, made: Callable[[str], str]) -> Callable[[str, Codec], str | None]:
    return lambda text, _codec: made(text) if re.fullmatch(pattern, text) else None


PROMISES: dict[ValueKind, Callable[[str, Codec], str | None]] = {
    ValueKind.OTHER: lambda _text, _codec: None,
    ValueKind.TEXT: lambda text, _codec: json_text(text, _codec.schema),
    ValueKind.INTEGER: _matching(r"0|-?[1-9][0-9]{0,18}", str),
    ValueKind.BOOL: lambda text, _codec: {"t": "true", "f": "false"}.get(text),
    ValueKind.FLOAT: _float,
    ValueKind.NUMERIC_TEXT: _matching(r"-?[0-9]+(\.[0-9]+)?", lambda text: f'"{text}"'),
    ValueKind.DATE: _date,
    ValueKind.TIMESTAMP_US: lambda text, _codec: _stamp(text, 6),
    ValueKind.TIMESTAMP_MS: lambda text, _codec: _stamp(text, 3),
    ValueKind.TIMESTAMPTZ: _stamp_utc,
    ValueKind.BYTEA: _matching(
        r"\\x([0-9a-f]{2})*", lambda text: f'"{b64encode(bytes.fromhex(text[2:])).decode()}"'
    ),
    ValueKind.DECIMAL: _decimal,
    **{kind: _array for kind in ValueKind if kind is not kind.of_element},
}
"""What each kind says of the texts that it names, written as a compiled path would."""


@settings(max_examples=examples(200))
@given(cases(), MODES)
@example((Column(name="c", type="float8", type_oid=1, declared="f"), b"0.00001"), NATIVE)
def test_a_kind_keeps_its_promise(case: tuple[Column, bytes], modes: ValueModes) -> None:
    column, text = case
    found = codec(column, modes)
    promised = PROMISES[found.kind](text.decode(), found) if found else None
    if found is not None and promised is not None:
        assert written(found, text) == promised


def test_every_kind_is_some_types() -> None:
    kinds = set()
    for name in TEXTS:
        for is_array in (False, True):
            for decimal in ("text", "precise"):
                column = Column(
                    name="c", type=name, type_oid=1, modifier=(9 << 16 | 2) + 4,
                    array=is_array, declared=name,
                )  # fmt: skip
                found = codec(column, ValueModes(decimal=decimal))
                kinds.add(found.kind if found else ValueKind.OTHER)
    for is_array in (False, True):
        few = codec(
            Column(name="c", type="timestamp", type_oid=1, modifier=3, array=is_array, declared="t")
        )
        assert few is not None
        kinds.add(few.kind)
    assert kinds == set(ValueKind)
