"""Any names that PostgreSQL takes → a folder, an index and a topic, each in its place."""

import os
import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from cdc.errors import SinkError
from cdc.records.schema import TableName
from cdc.records.topics import OWN_TOPICS, data_topic
from sinks.changes.derived import table_path
from sinks.search.documents import index_name

NAME_BYTES_MAX: Final = 63
"""PostgreSQL's, as it is built by everybody."""
FILE_BYTES_MAX: Final = 255
NO_INDEX: Final = re.compile(r'[\\/*?"<>| ,#:]')
"""What OpenSearch refuses in an index's name, or takes for several indexes."""
names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
).filter(lambda name: len(name.encode()) <= NAME_BYTES_MAX)
tables = st.builds(TableName, names, names)
TWO_DOTS = TableName("..", "..")
LONG = TableName("\N{OGHAM SPACE MARK}" * 21, "\x01" * 63)


@given(tables)
@example(TWO_DOTS)
@example(LONG)
@example(TableName("a/../../b", "/etc/passwd"))
@example(TableName("_millrace", "runs"))
@example(TableName("a", "%2e%2e"))
def test_a_tables_folder_is_two_names_below_the_lakehouse_that_file_systems_take(
    table: TableName,
) -> None:
    path = PurePosixPath(table_path("/lake", table))
    assert path.parent.parent == PurePosixPath("/lake")
    assert os.path.normpath(path) == str(path)
    assert all(len(part.encode()) <= FILE_BYTES_MAX for part in path.parts)
    assert path.parts[2] != "_millrace"
    with tempfile.TemporaryDirectory() as lake:
        folder = Path(table_path(lake, table))
        folder.mkdir(parents=True)
        assert folder.resolve().parent.parent == Path(lake).resolve()


@given(tables, tables)
@example(TableName("a", "b=2F"), TableName("a", "b/"))
@example(TWO_DOTS, TableName("=2E.", "=2E."))
def test_two_tables_never_share_a_folder(one: TableName, other: TableName) -> None:
    assert (table_path("/lake", one) == table_path("/lake", other)) == (one == other)


@given(tables, st.sampled_from(["", "shop.", "-", "_"]))
@example(TableName("*", ","), "")
@example(TableName("-*", "<{now/d}>"), "")
@example(TableName("-", "-millrace-progress"), "")
@example(TableName("_", "Millrace-Dead-Letters"), "")
@example(LONG, "")
def test_an_indexs_name_is_one_and_none_of_millraces_own(table: TableName, prefix: str) -> None:
    try:
        name = index_name(prefix, table)
    except SinkError:
        return  # this table has none, and others do
    assert not NO_INDEX.search(name)
    assert not name.startswith(("-", "_", "+", "."))
    assert name not in {f"{prefix}millrace-progress", f"{prefix}millrace-dead-letters", "_all"}
    assert len(f"{name}-1000000".encode()) <= FILE_BYTES_MAX


@given(tables)
@example(TWO_DOTS)
@example(LONG)
def test_a_topic_is_one_that_kafka_takes_and_none_of_millraces_own(table: TableName) -> None:
    topic = data_topic("shop", table)
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic)
    assert topic.startswith("shop.")
    assert not topic.startswith(OWN_TOPICS)
