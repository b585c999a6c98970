"""The source's tables and everything derived from them → the differences, row by row."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from deltalake import DeltaTable

from cdc.kafka.options import reader_options
from cdc.records.schema import TableName, TableSchema
from cdc.records.topics import schema_topic
from deploy.local.pipeline import Pipeline
from sinks.changes.derived import table_path
from sinks.changes.names import IS_CURRENT, VALID_FROM, VALID_TO
from sinks.search.client import connect
from sinks.search.documents import index_name
from tests.ddl_chaos.replay import OWN, Row, Versions, replayed
from tests.ddl_chaos.shapes import ARCHIVES, HISTORIES
from tests.ddl_chaos.source import GENERATED_SINCE, Source
from tests.fixtures.pipeline import read_log
from tests.fixtures.readers import delta_scan

Form = Literal["log", "current", "history", "changes", "index"]
FORMS: Final[tuple[Form, ...]] = ("log", "current", "history", "changes", "index")
"""What has a table's rows: the log, and what is derived of it: its rows, their history, an archive
of all events, an index.
"""
_TABLES: Final[Mapping[Form, Collection[str]]] = {"history": HISTORIES, "changes": ARCHIVES}
"""The tables that have such a form, where not all have it."""
_OWN: Final = ("_millrace", VALID_FROM, VALID_TO, IS_CURRENT)
"""How Millrace's own columns and fields begin."""
_NUMBERED: Final = re.compile(r"__dropped\d+$")
_EXAMPLES: Final = 3
_EXAMPLE_CHARACTERS: Final = 150
_DOCUMENTS_MAX: Final = 10_000
Rows = Counter[str]
"""A table's rows as texts, and how often each is there; a column that is missing is one, too."""


def full_name(table: str) -> TableName:
    """A table's name with its schema."""
    return TableName.parse(table if "." in table else f"public.{table}")


def has(form: Form, table: str, derived: Collection[str] = ()) -> bool:
    """Whether a table has such a form; ``derived`` tables alone have more than the log, or all."""
    if form == "log" or not derived:
        return table in _TABLES.get(form, {table})
    return table in derived and table in _TABLES.get(form, derived)


class Comparison:
    """Both sides; nobody may change the source while they are compared."""

    def __init__(
        self,
        source: Source,
        pipeline: Pipeline,
        forms: Collection[Form],
        derived: Collection[str] = (),
    ) -> None:
        self._source = source
        self._pipeline = pipeline
        self._tables = derived
        self._forms = [form for form in FORMS if form in forms]

    def differences(self) -> dict[str, dict[Form, str]]:
        """The tables that differ, and in what each derived form of them does."""
        versions = self._versions()
        logged = self._logged(versions)
        different: dict[str, dict[Form, str]] = {}
        for table in self._source.shapes:
            columns = self._columns(table)
            expected = self._expected(table, columns)
            for form in self._forms:
                if not has(form, table, self._tables):
                    continue
                rows: Iterable[Row]
                if form == "log":
                    rows = self._replayed(table, [*columns], logged[table], versions[table])
                else:
                    rows = self._derived(table, [*columns], form, versions[table])
                derived = Counter(map(_text, rows))
                if expected != derived:
                    different.setdefault(table, {})[form] = _told(expected, derived)
        return different

    def _columns(self, table: str) -> dict[str, str]:
        """The columns that are published, and what each is written by."""
        generated = self._source.version >= GENERATED_SINCE
        rows = self._source.ask(
            "SELECT attname, typtype = 'c' FROM pg_attribute JOIN pg_type t ON t.oid = atttypid"
            f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
            f" AND (attgenerated = '' OR {generated})"
        )
        return {name: f"{name}::text" if is_composite else name for name, is_composite in rows}

    def _expected(self, table: str, columns: Mapping[str, str]) -> Rows:
        chosen = ", ".join(f"{text} AS {name}" for name, text in columns.items())
        rows = self._source.ask(f"SELECT to_jsonb(r) FROM (SELECT {chosen} FROM {table}) r")
        return Counter(_text(row) for (row,) in rows)

    def _derived(
        self, table: str, columns: list[str], form: Form, versions: Versions
    ) -> Iterable[Row]:
        if form == "index":
            return self._documents(table)
        lakehouse = self._pipeline.settings.require_lakehouse()
        name = full_name(table)
        kind = "" if form == "current" else f"_{form}"
        path = table_path(lakehouse.path, TableName(name.namespace, f"{name.name}{kind}"))
        if not Path(path, "_delta_log").is_dir():
            return [{"no": "table"}]
        there = {field.name for field in DeltaTable(path).schema().fields}
        if missing := [column for column in columns if column not in there]:
            return [{"no": missing}]
        if more := surplus(there - {*columns}, form, versions):
            return [{"more": more}]
        if form != "changes":
            current = f" WHERE {IS_CURRENT}" * (form == "history")
            return delta_scan(path, _select(columns) + current)  # the one that knows widened types
        events = delta_scan(path, _select([*columns, *OWN]))
        return self._replayed(table, columns, events, versions)

    def _replayed(
        self, table: str, columns: list[str], events: Iterable[Row], versions: Versions
    ) -> list[Row]:
        return replayed(events, self._source.shapes[table].key.split(", "), columns, versions)

    def _logged(self, versions: Mapping[str, Versions]) -> dict[str, list[Row]]:
        """By table: the log's records, as an archive has them."""
        events: dict[str, list[Row]] = {table: [] for table in self._source.shapes}
        if "log" in self._forms:
            tables = {str(full_name(table)): table for table in self._source.shapes}
            states = {state.topic: state for state in self._pipeline.tables()}
            topics = {topic: state.partitions for topic, state in states.items()}
            for record in read_log(reader_options(self._pipeline.settings.kafka), topics):
                if (table := tables.get(str(states[record.topic].name))) is not None:
                    events[table].append(versions[table].archived(record))
        return events

    def _documents(self, table: str) -> list[dict[str, Any]]:
        search = self._pipeline.settings.require_search()
        client = connect(search)
        index = index_name(search.index_prefix, full_name(table))
        if not client.indices.exists(index=index):
            return [{"no": "index"}]
        client.indices.refresh(index=index)
        hits = client.search(index=index, body={"size": _DOCUMENTS_MAX})["hits"]["hits"]
        sources = (hit["_source"] for hit in hits)
        return [{n: row[n] for n in row if not n.startswith(_OWN)} for row in sources]

    def _versions(self) -> dict[str, Versions]:
        """By table: its schema versions."""
        topic = schema_topic(self._pipeline.settings.capture.topic_prefix)
        tables = {full_name(table): table for table in self._source.shapes}
        schemas: dict[str, list[TableSchema]] = {table: [] for table in self._source.shapes}
        for schema in self._pipeline.states.read_all(topic, TableSchema):
            if (table := tables.get(schema.name)) is not None:
                schemas[table].append(schema)
        return {table: Versions(of_table) for table, of_table in schemas.items()}


def surplus(names: Iterable[str], form: Form, versions: Versions) -> list[str]:
    """Which of a derived table's columns, that the source doesn't have, it must not have either.

    An archive keeps what the source has dropped. A column that stays where another one needs its
    name has a number behind it.
    """
    if form == "changes":
        return []
    staying = versions.staying(in_history=form == "history")
    others = (name for name in names if not name.startswith(_OWN))
    return sorted(name for name in others if _NUMBERED.sub("", name) not in staying)


def _select(columns: Iterable[str]) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    return f"SELECT {names} FROM t"


def _told(expected: Rows, derived: Rows) -> str:
    lacks, more = expected - derived, derived - expected
    return f"lacks {lacks.total()} rows ({_some(lacks)}), has {more.total()} others ({_some(more)})"


def _some(rows: Rows) -> str:
    return ", ".join(row[:_EXAMPLE_CHARACTERS] for row in sorted(rows)[:_EXAMPLES])


def _text(row: Mapping[str, Any]) -> str:
    """Without nulls, which documents leave out."""
    return json.dumps({name: row[name] for name in sorted(row) if row[name] is not None})
