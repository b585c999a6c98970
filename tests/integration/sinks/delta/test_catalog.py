"""Derived tables and their names in Spark's catalog: set once, never taken from another table."""

import pytest

from cdc.errors import ConfigError, ExitCode
from sinks.changes.derived import table_path
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_table_has_its_name_in_the_catalog(lakehouse: Lakehouse) -> None:
    lakehouse.spark.sql("CREATE SCHEMA shop")
    lakehouse.configure(catalog="shop")
    log = lakehouse.log(column("id", "int4", 1), table="odd-name")
    log.row("r", at(10, 0), {"id": 1})
    log.table(10)
    log.reached(at(10, 0))
    assert [table.error for table in lakehouse.merge().tables] == [None]
    assert [row["id"] for row in lakehouse.spark.table("shop.odd_name").collect()] == [1]
    lakehouse.spark.sql("DROP SCHEMA shop CASCADE")


@pytest.mark.proof
def test_tables_have_names_in_the_catalog(lakehouse: Lakehouse) -> None:
    spark = lakehouse.spark
    spark.sql("CREATE SCHEMA sales")
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"), table="odd-name")
    taken = log.beside(table_schema(lakehouse.prefix, "taken", *log.schema.columns))
    for each in (log, taken):
        each.row("r", at(10, 0), {"id": 1, "n": 1})
        each.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()  # as if nobody had wanted any names yet
    elsewhere = lakehouse.folder / "elsewhere"
    spark.sql(f"CREATE TABLE sales.taken (id int) USING delta LOCATION '{elsewhere}'")
    history = {"source": "public.taken", "kind": "history", "catalog": "sales.what_was"}
    lakehouse.configure(catalog="sales", tables=[history])
    for number in (2, 3):
        for each in (log, taken):
            each.row("u", at(10 * number), {"id": 1, "n": number})
        log.reached(at(10 * number))
        found = {table.name: table.error for table in lakehouse.merge().tables}
        assert found["public.odd-name"] is None
        assert found["public.taken_history"] is None
        error = found["public.taken"]
        assert error is not None
        assert error.exit_code == ExitCode.SINK
        assert "sales.taken in the catalog is another table" in str(error)
        for name in ("sales.odd_name", "sales.what_was"):
            assert spark.table(name).where(f"n = {number}").count() == 1
        assert lakehouse.rows(taken.schema) == [{"id": 1, "n": number}], "the table itself is right"
    spark.sql("DROP TABLE sales.odd_name")
    assert (lakehouse.folder / "public").is_dir()
    path = table_path(str(lakehouse.folder), log.schema.name)
    assert spark.read.format("delta").load(path).count() == 1, "it isn't the catalog's to remove"
    spark.sql("DROP SCHEMA sales CASCADE")


@pytest.mark.proof
def test_tables_of_two_schemas_cant_have_one_name(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1))
    other = table_schema(lakehouse.prefix, "T", column("id", "int4", 1))
    log.beside(other).table(10)
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.configure(catalog="sales")
    with pytest.raises(ConfigError, match="would both be"):
        lakehouse.merge()
