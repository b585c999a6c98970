"""The recorded cases' rows, read by COPY and by pgoutput → the values that a real Debezium wrote.

It compares column by column, without the daemon. If Debezium's snapshot and stream differ for a
value, or it loses the value by a mistake, ``BETTER`` has ours.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import psycopg
import pytest

from cdc.events.changes import Row, filled
from cdc.postgres import catalog
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.connect import Schema
from cdc.records.schema import Column, TableName
from cdc.settings.modes import ValueModes
from cdc.values import codec, default, placeholder, zero
from cdc.wal.messages import ABSENT, Value
from tests.fixtures.both_ways import Sent, available_extensions, copied, make_slot, sent
from tests.fixtures.json_values import json_text, json_value
from tests.fixtures.json_values import written as json_of
from tests.fixtures.source import Conninfo, session

CASES: Final = Path(__file__).parents[3] / "golden" / "cases"
PATTERNS: Final = (
    *("types_*", "time_*", "timetz_*", "decimal_double", "decimal_string", "numeric_special_*"),
    *("interval_string", "strings_json", "keys_exotic_types", "schemas_*", "null_vs_default*"),
    "toast_*",
)
NAMES: Final = sorted({path.name for one in PATTERNS for path in CASES.glob(one)})
DEBEZIUM: Final = ValueModes(
    decimal="precise",
    time_precision="adaptive",
    interval="numeric",
    hstore="json",
    include_unknown=False,
    lossless=False,
)
OPTIONS: Final = {
    "decimal.handling.mode": "decimal",
    "time.precision.mode": "time_precision",
    "binary.handling.mode": "binary",
    "interval.handling.mode": "interval",
    "hstore.handling.mode": "hstore",
}
PROPAGATED: Final = "__debezium.source.column."
NOW: Final = {"cust r created"}
"""What now() gave."""

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(not NAMES, reason="the recorded cases aren't in tests/golden/cases"),
]


def properties(case: str) -> dict[str, str]:
    lines = (CASES / case / "debezium.properties").read_text(encoding="utf-8").splitlines()
    return dict(line.removeprefix("debezium.").split("=", 1) for line in lines if "=" in line)


def modes(case: str) -> ValueModes:
    found = properties(case)
    chosen: dict[str, Any] = {
        name: found[f"source.{option}"]
        for option, name in OPTIONS.items()
        if f"source.{option}" in found
    }
    if found.get("source.include.unknown.datatypes") == "true":
        chosen["include_unknown"] = True
    if "source.unavailable.value.placeholder" in found:
        chosen["placeholder"] = found["source.unavailable.value.placeholder"].encode()
    fields = {**{name: getattr(DEBEZIUM, name) for name in DEBEZIUM.__slots__}, **chosen}
    for name, hint in get_type_hints(ValueModes).items():
        assert not get_args(hint) or fields[name] in get_args(hint)
    return ValueModes(**fields)


_DATES: Final = [
    "tmp_t r d: -2147472692 | -622191234",
    "tmp_t r d: -2147472691 | -625821272",
    "tmp_t r d: -735160 | -703383",
    "tmp_t r d: -2440550 | 1001860",
]
_NAMES: Final = [
    "txt_t c nm: nm | None",
    "txt_t c nm:  | None",
    "txt_t c nm: x | None",
    "txt_t u nm: nm | None",
]
BETTER: Final[dict[str, list[str]]] = {
    # Dates before Christ and infinite ones: as in Debezium's stream, its snapshot is wrong.
    "time_adaptive_extreme": _DATES,
    "time_adaptive_time_microseconds_extreme": _DATES,
    "time_connect_extreme": _DATES,
    "time_microseconds_extreme": _DATES,
    "time_nanoseconds_extreme": _DATES,
    "time_isostring_extreme": [
        "tmp_t r d: -5877611-06-21Z | +292278994-08-16Z",
        "tmp_t r d: -5877611-06-22Z | +292269055-12-02Z",
        "tmp_t r d: -0043-03-15Z | 0044-03-15Z",
        "tmp_t r d: -4712-01-01Z | 4713-01-01Z",
    ],
    # name: as in Debezium's snapshot, its stream has null.
    "types_text_binary": _NAMES,
    "types_text_binary_b64": _NAMES,
    "types_text_binary_hex_map": _NAMES,
    # An offset with seconds: null in Debezium's snapshot, and the end of its stream.
    "timetz_seconds_offset": ["tz_t r z: 08:57:57Z | None"],
}
"""Case → differences: table, letter and column, what we write, what was recorded."""


class Recorded:
    """A case's recorded values: by table and letter, in order; and the schemas of their fields."""

    def __init__(self, case: str) -> None:
        self.rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.schemas: dict[tuple[str, str], dict[str, Any]] = {}
        for line in (CASES / case / "expected.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
            record = json.loads(line)
            value = record["value"]
            value = json.loads(value) if isinstance(value, str) else value
            if value is None:
                continue
            payload = value.get("payload", value)
            if payload.get("op") not in {"r", "c", "u", "d"}:
                continue
            table = payload["source"]["table"]
            row = payload["after"] or payload["before"]
            self.rows.setdefault((table, payload["op"]), []).append(row)
            if "schema" in value:
                fields = next(f for f in value["schema"]["fields"] if f["field"] == "after")
                self.schemas[table, payload["op"]] = {f["field"]: f for f in fields["fields"]}


@pytest.fixture
def opened(database: Conninfo) -> Iterator[psycopg.Connection]:
    """Open a session that ends with its slot gone."""
    with session(database) as connection:
        yield connection


def script(opened: psycopg.Connection, path: Path) -> None:
    """Run a case's SQL, leaving out what its runner is told in comments."""
    opened.execute("SET search_path = public")
    text = path.read_text(encoding="utf-8")
    opened.pgconn.exec_(text.encode())
    opened.execute("SET search_path = pg_catalog")


def described(opened: psycopg.Connection) -> list[TableDescription]:
    rows = opened.execute(
        "SELECT c.oid, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = 'public' AND relkind = 'r'"
    ).fetchall()
    tables = [CapturedTable(oid, TableName("public", name)) for oid, name in rows]
    return catalog.describe(opened, tables, "golden_pub")


def written(column: Column, how: ValueModes, value: Value, *, kept: bool) -> Any:
    """What an event says of a value, after making sure that codec's two ways agree."""
    found = codec(column, how)
    assert found is not None
    if value is ABSENT:
        return json_value(placeholder(column, found, how), found.schema)
    if isinstance(value, bytes):
        decoded = found.decode(value)
        assert json_of(found, value) == json_text(decoded, found.schema)
    else:
        decoded = None
    if decoded is None and not kept:
        decoded = default(column, found, how)
    return json_value(decoded, found.schema)


def old_key(column: Column, how: ValueModes, value: Value, *, kept: bool) -> Any:
    """What a delete's ``before`` says of a column that only the old key may have."""
    if value is None and not column.optional:
        found = codec(column, how)
        assert found is not None
        stand_in = default(column, found, how)
        return json_value(zero(column, found, how) if stand_in is None else stand_in, found.schema)
    return written(column, how, value, kept=kept)


def same(ours: Any, recorded: Any) -> bool:
    """Equal as JSON; the order of members of JSON in a string is Java's hash order."""
    if isinstance(ours, str) and isinstance(recorded, str) and ours[:1] == recorded[:1] == "{":
        return bool(ours == recorded or json.loads(ours) == json.loads(recorded))
    return bool(ours == recorded)


def as_json(schema: Schema) -> dict[str, Any]:
    """A schema as Connect's JSON converter writes it."""
    fields = [{**as_json(field.schema), "field": field.name} for field in schema.fields]
    members = {
        "type": schema.type.value,
        "optional": schema.optional,
        "name": schema.name,
        "version": schema.version,
        "doc": schema.doc,
        "parameters": dict(schema.parameters) if schema.parameters else None,
        "items": as_json(schema.items) if schema.items else None,
        "fields": fields or None,
    }
    return {name: member for name, member in members.items() if member is not None}


def differences(
    where: str, columns: tuple[Column, ...], how: ValueModes, ours: list[Any], recorded: list[Any]
) -> Iterator[str]:
    for mine, theirs in zip(ours, recorded, strict=True):
        assert mine.keys() == theirs.keys()
        for column in columns:
            if column.name not in mine or f"{where} {column.name}" in NOW:
                continue
            if not same(mine[column.name], theirs[column.name]):
                shown = (str(mine[column.name])[:70], str(theirs[column.name])[:70])
                yield f"{where} {column.name}: {shown[0]} | {shown[1]}"


def events(sents: Iterable[Sent], how: ValueModes) -> Iterator[Sent]:
    """The row messages as Debezium's letters: a changed key is a delete and a create."""
    for one in sents:
        if one.old is None or one.new is None:
            yield one
            continue
        completed = one._replace(new=filled(one.new, one.old, old_is_key=one.keyed))
        if key_of(completed, completed.old, how) == key_of(completed, completed.new, how):
            yield completed
        else:
            yield completed._replace(op="d", new=None)
            yield completed._replace(op="c", old=None)


def key_of(one: Sent, row: Row | None, how: ValueModes) -> list[Any]:
    """The key's values: 1.50 and 1.5 are the same."""
    assert row is not None
    pairs = zip(one.columns, row, strict=True)
    return [written(column, how, value, kept=True) for column, value in pairs if column.key]


def rows_of(
    sents: Iterable[Sent], table: str, op: str, how: ValueModes, kept: bool
) -> Iterator[dict[str, Any]]:
    for one in events(sents, how):
        if (one.table, one.op) != (table, op):
            continue
        write = old_key if op == "d" and one.keyed else written
        row = one.new or one.old
        assert row is not None
        yield {
            column.name: write(column, how, value, kept=kept)
            for column, value in zip(one.columns, row, strict=True)
            if codec(column, how) is not None
        }


@pytest.mark.parametrize("case", NAMES)
def test_values_are_as_recorded(opened: psycopg.Connection, case: str) -> None:
    how, recorded = modes(case), Recorded(case)
    kept = properties(case).get("format.value.replace.null.with.default") == "false"
    found: list[str] = []
    setup = CASES / case / "setup.sql"
    wanted = set(re.findall(r"CREATE EXTENSION (\w+)", setup.read_text(encoding="utf-8")))
    if missing := wanted - available_extensions(opened):
        pytest.skip(f"this server has no {', '.join(missing)}")
    script(opened, setup)
    make_slot(opened)
    tables = {table.name.name: table for table in described(opened)}
    assert {name for name, _ in recorded.rows} <= tables.keys()
    for name, table in tables.items():
        kept_columns = [column for column in table.columns if codec(column, how) is not None]
        ours = [
            {
                column.name: written(column, how, value, kept=kept)
                for column, value in zip(table.columns, row, strict=True)
                if column in kept_columns
            }
            for row in copied(opened, table)
        ]
        key = kept_columns[0].name
        theirs = recorded.rows.get((name, "r"), [])
        order = {json.dumps(row[key]): place for place, row in enumerate(theirs)}
        ours.sort(key=lambda row: order.get(json.dumps(row[key]), 0))
        found += differences(f"{name} r", table.columns, how, ours, theirs)
        for column in kept_columns:
            if (name, "r") in recorded.schemas:
                found += schema_differences(column, how, recorded.schemas[name, "r"][column.name])
    script(opened, CASES / case / "changes.sql")
    sents = list(sent(opened, "golden_pub"))
    for (name, op), theirs in recorded.rows.items():
        if op != "r" and case != "timetz_seconds_offset":
            ours = list(rows_of(sents, name, op, how, kept))
            found += differences(f"{name} {op}", tables[name].columns, how, ours, theirs)
    assert found == BETTER.get(case, [])


def schema_differences(column: Column, how: ValueModes, recorded: dict[str, Any]) -> Iterator[str]:
    found = codec(column, how)
    assert found is not None
    parameters = {
        name: value
        for name, value in recorded.get("parameters", {}).items()
        if not name.startswith(PROPAGATED)
    }
    recorded = {**recorded, "parameters": parameters}
    ours = {
        "parameters": {},
        **as_json(found.schema),
        "optional": column.optional,
        "field": column.name,
    }
    stand_in = default(column, found, how)
    if stand_in is not None:
        ours["default"] = json_value(stand_in, found.schema)
    if ours != recorded:
        yield f"{ours} | {recorded}"
