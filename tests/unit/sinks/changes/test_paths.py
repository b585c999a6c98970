"""Every table has its own folder inside the lakehouse, with any name."""

from pathlib import Path

import pytest

from cdc.records.schema import TableName
from sinks.changes.derived import local_path, table_path


@pytest.mark.parametrize(
    ("table", "path"),
    [
        (TableName("public", "orders"), "s3a://lake/public/orders"),
        (TableName("Größe", "a/b"), "s3a://lake/Gr=C3=B6=C3=9Fe/a=2Fb"),
        (TableName("..", "."), "s3a://lake/=2E./=2E"),
        (TableName("_millrace", "runs"), "s3a://lake/=5Fmillrace/runs"),
    ],
)
def test_a_table_stays_inside_and_apart(table: TableName, path: str) -> None:
    assert table_path("s3a://lake/", table) == path


def test_a_local_path_is_what_hadoop_makes_of_it() -> None:
    path = table_path("file:///lake", TableName("public", "odd name"))
    assert local_path(path) == Path("/lake/public/odd=20name")
