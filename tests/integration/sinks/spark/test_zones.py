"""[spark] with another time zone, on a machine in a third → the rows and documents of UTC."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.search.client import connect
from sinks.views.records import view_path
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import run

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(900),
]
AT: Final = "2026-01-31 23:30:00"
SKIPPED: Final = "2026-03-08 02:30:00"
"""A time of day that New York didn't have; the next one it had twice."""
REPEATED: Final = "2026-11-01 01:30:00"
IDS: Final = [f"2026-{of}.000000Z" for of in ("01-31T23:30:00", "11-01T05:30:00", "11-01T06:30:00")]
SCHEMA: Final = (
    "CREATE TABLE places (id int PRIMARY KEY, since timestamp)",
    "CREATE TABLE visits (at timestamptz PRIMARY KEY, plain timestamp, day date, place int)",
    f"INSERT INTO places VALUES (1, '{AT}')",
    f"INSERT INTO visits VALUES ('{AT}Z', '{AT}', '2026-01-31', 1)",
    f"INSERT INTO visits VALUES ('2026-11-01 05:30Z', '{SKIPPED}', '2026-03-08', 1)",
    f"INSERT INTO visits VALUES ('2026-11-01 06:30Z', '{REPEATED}', '2026-11-01', 1)",
)
SECTIONS: Final[dict[str, Any]] = {
    "spark": {"spark.sql.session.timeZone": "America/New_York"},
    "views": [
        {
            "name": "days",
            "query": "SELECT date(at) AS day, date(plain) AS plain, hour(at) AS hour,"
            " count(*) AS n FROM visits GROUP BY ALL",
        }
    ],
    "search.documents": [
        {
            "name": "seen",
            "table": "public.visits",
            "computed": {"hour": "hour(at)"},
            "embed": [{"field": "spot", "table": "public.places", "on": {"id": "place"}}],
        }
    ],
    "lakehouse.tables": [{"source": "public.visits", "partition": ["at"]}],
}


class Stand:
    """A merge in a zone, on a machine in another one."""

    def __init__(self, made: RunningPipeline) -> None:
        self.made = made
        self.lake = str(made.folder / "lakehouse")
        self.search = made.settings.require_search()

    def merge(self) -> None:
        done = self.made.millrace("merge", "all", environment={"TZ": "Asia/Tokyo"})
        assert done.returncode == ExitCode.OK, done.stdout + done.stderr

    def table(self, name: str) -> list[dict[str, Any]]:
        rows = query_builder(table_path(self.lake, TableName("public", name)))
        return sorted(rows, key=str)

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """Each document by its id."""
        with connect(self.search) as client:
            name = f"{self.search.index_prefix}{index}"
            client.indices.refresh(index=name)
            hits = client.search(index=name, body={"size": 10})["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}


def test_rows_and_documents_are_the_same_in_any_zone(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str]
) -> None:
    run(database, *SCHEMA)
    stand = Stand(pipeline(search=True, sections=SECTIONS))
    daemon = stand.made.catch_up()
    stand.merge()

    (place,) = stand.table("places")
    assert place["since"].isoformat(" ") == AT
    visits = {row["day"].isoformat(): row for row in stand.table("visits")}
    assert {day: str(row["at"]) for day, row in visits.items()} == {
        "2026-01-31": f"{AT}+00:00",
        "2026-03-08": "2026-11-01 05:30:00+00:00",
        "2026-11-01": "2026-11-01 06:30:00+00:00",
    }
    assert [str(visits[day]["plain"]) for day in sorted(visits)] == [AT, SKIPPED, REPEATED]
    days = query_builder(view_path(stand.lake, "days"))
    assert {(str(row["day"]), str(row["plain"]), row["hour"], row["n"]) for row in days} == {
        ("2026-01-31", "2026-01-31", 23, 1),
        ("2026-11-01", "2026-03-08", 5, 1),
        ("2026-11-01", "2026-11-01", 6, 1),
    }
    for index in ("public.visits", "seen"):
        documents = stand.documents(index)
        assert sorted(documents) == IDS
        assert documents[IDS[0]]["at"] == IDS[0]
        assert documents[IDS[0]]["plain"] == IDS[0].removesuffix("Z")
    assert documents[IDS[0]]["hour"] == 23
    assert documents[IDS[0]]["spot"]["since"] == IDS[0].removesuffix("Z")

    run(database, f"DELETE FROM visits WHERE at = '{AT}Z'", "UPDATE visits SET place = 2")
    stand.made.wait_until_logged(stand.made.wal_end(), daemon)
    stand.merge()
    assert [row["place"] for row in stand.table("visits")] == [2, 2]
    assert sorted(stand.documents("public.visits")) == sorted(stand.documents("seen")) == IDS[1:]
    asked = stand.made.millrace("query", "-f", "csv", "SELECT CAST(since AS string) FROM places")
    assert AT in asked.stdout
