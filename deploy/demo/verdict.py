"""A pipeline's settings → source, Delta table and index of each table compared, and printed."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from cdc.records.schema import TableName
from cdc.settings import SearchSettings, Settings
from deploy.demo import flights
from deploy.demo.proof import (
    Comparison,
    connect,
    document_differences,
    index_differences,
    lakehouse_differences,
)

TABLES: Final = tuple(TableName("public", table.name) for table in flights.TABLES)
INDEXED: Final = tuple(table for table in TABLES if table.name != "flights")
SEARCH: Final = {"tables": [str(table) for table in INDEXED], "documents": [flights.DOCUMENT]}
"""An index for each small table. A flight's document has everything that belongs to it."""
EXAMPLE_QUERY: Final = (
    "SELECT a.name, count(*) AS flights, round(avg(f.dep_delay), 1) AS delay_min\n"
    "FROM flights f JOIN airlines a ON f.carrier = a.carrier\n"
    "GROUP BY a.name ORDER BY flights DESC LIMIT 3"
)
EXAMPLE_SEARCH: Final = "airline.name:delta AND to_airport.name:orlando AND weather.visib:<2"


class Proof(NamedTuple):
    """The comparison of one table and of its documents with the source."""

    table: TableName
    rows: Comparison
    documents: Comparison

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not self.rows.differences and not self.documents.differences


def prove(
    settings: Settings, source: Mapping[str, str], folder: Path, console: Console
) -> list[Proof]:
    """Compare Delta tables (in Spark) and indexes (here) at the same time."""
    with ThreadPoolExecutor() as executor:
        in_delta = executor.submit(_prove_lakehouse, settings, source, folder, console)
        in_search = executor.submit(
            _prove_search, settings.require_search(), source, folder, console
        )
        return list(map(Proof, TABLES, in_delta.result(), in_search.result()))


def _prove_lakehouse(
    settings: Settings, source: Mapping[str, str], folder: Path, console: Console
) -> list[Comparison]:
    from sinks.changes.derived import table_path
    from sinks.spark.session import open_session

    location = settings.require_lakehouse().path
    spark = open_session(settings.spark, "proof")
    comparisons = []
    with connect(source) as connection:
        for table in TABLES:
            path = table_path(location, table)
            comparison = lakehouse_differences(spark, connection, table, path, folder)
            comparisons.append(comparison)
            console.print(f"  Delta {table}: {comparison.differences} differ")
            spark.read.format("delta").load(path).createOrReplaceTempView(table.name)
    console.print("\n[bold]An example query[/] on the Delta tables:")
    console.print(EXAMPLE_QUERY, highlight=False, markup=False)
    for row in spark.sql(EXAMPLE_QUERY).collect():
        console.print("  " + " | ".join(str(value) for value in row))
    spark.stop()
    return comparisons


def _prove_search(
    settings: SearchSettings, source: Mapping[str, str], folder: Path, console: Console
) -> list[Comparison]:
    from sinks.search.client import connect as connect_search
    from sinks.search.client import search
    from sinks.search.documents import document_index, index_name

    client = connect_search(settings)
    name = str(flights.DOCUMENT["name"])
    comparisons = []
    with connect(source) as connection:
        for table in TABLES:
            if table in INDEXED:
                index = index_name(settings.index_prefix, table)
                comparison = index_differences(client, connection, table, index, folder)
            else:
                index = document_index(settings.index_prefix, name)
                comparison = document_differences(client, connection, flights.DOCUMENTS_SQL, index)
            comparisons.append(comparison)
            console.print(f"  index {index}: {comparison.differences} differ")
    console.print(f"\n[bold]An example search[/] in joined documents: {EXAMPLE_SEARCH}")
    for hit in search(settings, name, EXAMPLE_SEARCH, limit=3).hits:
        about = (hit["airline"]["name"], hit["route"], f"left {hit['dep_delay']} min late")
        console.print("  " + " | ".join(about), markup=False)
    return comparisons


def show(proofs: list[Proof], console: Console) -> None:
    """Print a line for each table, and examples of differences."""
    table = Table(title="\nSource = Delta = index")
    for heading in ("table", "source rows", "rows that differ", "documents", "that differ"):
        table.add_column(heading, justify="left" if heading == "table" else "right")
    for proof in proofs:
        table.add_row(
            str(proof.table),
            f"{proof.rows.total:,}",
            f"{proof.rows.differences}",
            f"{proof.documents.total:,}",
            f"{proof.documents.differences}",
        )
    console.print(table)
    for proof in proofs:
        for example in (*proof.rows.examples, *proof.documents.examples):
            console.print(f"  {proof.table} differs: {example}", markup=False)
