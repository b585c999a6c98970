"""Bytes instead of a value's text, a COPY line, a position → a value, or its error."""

import contextlib
import json
from dataclasses import replace
from typing import Any, Final

from cdc.records.position import Lsn, Position
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values import MALFORMED, Codec, codec
from snapshots.copied_rows import parse
from tests.fixtures.json_values import json_text, written
from tests.fixtures.position_headers import parse_header
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target

TEXTS: Final[dict[str, tuple[bytes, ...]]] = {
    "bool": (b"t", b"f"),
    "int2": (b"0", b"-32768"),
    "int4": (b"7", b"2147483647"),
    "int8": (b"-9223372036854775808", b"1"),
    "oid": (b"4294967295",),
    "float4": (b"1e-45", b"3.4028235e+38", b"NaN", b"-0", b"0.1"),
    "float8": (b"1.7976931348623157e+308", b"-Infinity", b"100000", b"0.0001", b"5e-324"),
    "numeric": (b"123.4500", b"-0.0000001", b"NaN", b"Infinity", b"12345678901234567890"),
    "money": (b"-$1,234.50", b"$0.00"),
    "bytea": (b"\\x", b"\\x00ff7fde", b"\\xDEAD"),
    "bit": (b"1", b"010101010"),
    "varbit": (b"", b"11111111111111111"),
    "date": (b"2024-02-29", b"0044-03-15 BC", b"infinity", b"5874897-12-31"),
    "time": (b"24:00:00", b"13:14:15.123456"),
    "timetz": (b"13:14:15.5+02", b"00:00:00-15:59:59"),
    "timestamp": (b"2024-02-29 13:14:15.123", b"294276-12-31 23:59:59.999999", b"-infinity"),
    "timestamptz": (b"2024-02-29 13:14:15.123456+00", b"4713-01-01 00:00:00+00 BC"),
    "interval": (b"P1Y2M3DT4H5M6.789S", b"PT0S", b"P-1YT-0.000001S", b"infinity"),
    "uuid": (b"0e37df36-f698-11e6-8dd4-cb9ced3df976",),
    "json": (b'{"a": [1, 2.5, null, "\\u00e9"]}', b'"\\\\"'),
    "xml": (b"<a>&lt;</a>",),
    "enum": (b"sad",),
    "hstore": (b'"a"=>"1", "b"=>NULL', b'"q\\"\\\\"=>""', b""),
    "point": (b"(1.5,-2)", b"(NaN,Infinity)", b"(1e+300,1e-300)"),
    "line": (b"{1,-1,0}",),
    "box": (b"(1,1),(0,0)",),
    "path": (b"[(0,0),(1e+10,0.001)]",),
    "circle": (b"<(0,0),1>",),
    "geometry": (b"0101000020E6100000000000000000F03F000000000000F03F",),
    "vector": (b"[1,2.5,-3e-10]",),
    "halfvec": (b"[1,65504]",),
    "sparsevec": (b"{1:1.5,3:2}/5", b"{}/3"),
    "text": ('a "quoted" \\ text\né日\U0001f600\x01'.encode(), b""),
    "unheard_of": (b"whatever",),
}  # fmt: skip
_AXES: Final = (
    ("decimal", ("precise", "double", "string")),
    ("time_precision", (
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds",
        "nanoseconds",
    )),
    ("binary", ("base64", "base64-url-safe", "hex")),
    ("interval", ("numeric", "string")),
    ("hstore", ("json", "map")),
)  # fmt: skip


class Values(Target):
    """Every type, as array and not, in every mode: a text is refused, or has JSON."""

    name = "values"
    share = 20

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._cases: list[tuple[Codec, Mutator]] = []
        other = [text for texts in TEXTS.values() for text in texts]
        for kind, texts in TEXTS.items():
            for array in (False, True):
                seeds = as_arrays(texts) if array else texts
                mutator = Mutator([*seeds * 3, *self.random.sample(other, 5)], self.random)
                self._cases += [(each, mutator) for each in _codecs(kind, array=array)]

    def make(self) -> tuple[Codec, bytes]:
        """Make a text for one of the codecs."""
        chosen, mutator = self._cases[int(self.random.random() * len(self._cases))]
        return chosen, mutator.make()

    def check(self, made: tuple[Codec, bytes]) -> None:
        """Read it, and write it as JSON."""
        chosen, text = made
        try:
            value = chosen.decode(text)
        except MALFORMED:
            return
        fragment = written(chosen, text)
        expected = json_text(value, chosen.schema)
        if fragment != expected:
            assert json.loads(fragment) == json.loads(expected)
        fragment.encode()


def _codecs(kind: str, *, array: bool) -> list[Codec]:
    codecs = []
    for lossless in (True, False):
        native = ValueModes(lossless=lossless)
        modes = [native]
        for name, settings in _AXES:
            for setting in settings:
                changed: dict[str, Any] = {name: setting}
                modes.append(replace(native, **changed))
        for modifier in (-1, 3, (10 << 16) + 2 + 4):
            column = Column(
                name="c", type=kind, type_oid=1, array=array, modifier=modifier, declared=kind,
                labels=("sad", "ok"),
            )  # fmt: skip
            codecs += [each for mode in modes if (each := codec(column, mode)) is not None]
    return codecs


def as_arrays(texts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Arrays of them, of one and two dimensions."""
    quoted = [b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"' for text in texts]
    flat = b"{" + b",".join([*quoted, b"NULL"]) + b"}"
    return flat, b"{" + texts[0] + b"}", b"{" + flat + b"," + flat + b"}", b"[2:3]=" + flat, b"{}"


class CopyLines(Target):
    """Lines of COPY, mutated: any bytes are a row; one without escapes is its fields."""

    name = "copy"
    share = 5

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        lines = [
            b"1\t\\N\ttext\n",
            b"a\\tb\\\\c\\nd\t\\\\N\t\n",
            b"\\N\n",
            b"\n",
            b"\\b\\f\\r\\v\\x\n",
        ]
        self._mutator = Mutator(lines, self.random)

    def make(self) -> bytes:
        """Make a line with its end."""
        return self._mutator.make() + b"\n"

    def check(self, made: bytes) -> None:
        """Parse it."""
        row = parse(made)
        assert len(row) == made[:-1].count(b"\t") + 1
        if b"\\" not in made:
            assert b"\t".join(value or b"" for value in row) + b"\n" == made


class Positions(Target):
    """Texts of positions, LSNs and headers, mutated: what is read is written the same again."""

    name = "positions"
    share = 5

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        position = b"00000001.00000000016b3748.0000000000000001"
        self._mutator = Mutator([position, position + b"/12", b"16/B374D848", b"0/0"], self.random)

    def make(self) -> bytes:
        """Make a text."""
        return self._mutator.make()

    def check(self, made: bytes) -> None:
        """Read it as each."""
        text = made.decode("latin-1")
        with contextlib.suppress(ValueError):
            assert str(Position.parse(text)) == text
        with contextlib.suppress(ValueError):
            assert Lsn.parse(str(Lsn.parse(text))) == Lsn.parse(text) < 1 << 64
        try:
            position, version = parse_header(made)
        except ValueError:
            return
        assert made.startswith(str(position).encode() + b"/")
        assert version >= 0
