"""[spark] with another time zone, on a machine in a third → the rows and documents of UTC."""

import json
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
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(900),
]
AT: Final = "2026-01-31 23:30:00"
VIEW: Final = {
    "name": "days",
    "query": "SELECT date(at) AS day, date(plain) AS plain, hour(at) AS hour, count(*) AS n"
    " FROM visits GROUP BY ALL",
}
DOCUMENTS: Final = {
    "name": "seen",
    "table": "public.visits",
    "computed": {"hour": "hour(at)", "day": "date(at)"},
    "embed": [{"field": "place", "table": "public.places", "on": {"id": "place"}}],
}


def test_rows_and_documents_are_the_same_in_any_zone(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str]
) -> None:
    run(
        database,
        "CREATE TABLE places (id int PRIMARY KEY, since timestamp)",
        "CREATE TABLE visits (at timestamptz PRIMARY KEY, plain timestamp, day date, place int)",
        f"INSERT INTO places VALUES (1, '{AT}')",
        f"INSERT INTO visits VALUES ('{AT}Z', '{AT}', '2026-01-31', 1),"
        " ('2026-11-01 05:30Z', '2026-03-08 02:30', '2026-03-08', 1),"
        " ('2026-11-01 06:30Z', '2026-11-01 01:30', '2026-11-01', 1)",
    )
    sections: dict[str, Any] = {
        "spark": {"spark.sql.session.timeZone": "America/New_York"},
        "views": [VIEW],
        "search.documents": [DOCUMENTS],
        "lakehouse.tables": [{"source": "public.visits", "partition": ["at"]}],
    }
    made = pipeline(search=True, sections=sections)
    daemon = made.catch_up()
    zone = {"TZ": "Asia/Tokyo"}
    done = made.millrace("merge", "all", environment=zone)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr

    lake = str(made.folder / "lakehouse")
    (place,) = query_builder(table_path(lake, TableName("public", "places")))
    assert place["since"].isoformat(" ") == AT
    visits = query_builder(table_path(lake, TableName("public", "visits")))
    first = min(visits, key=lambda row: str(row["at"]))
    assert first["at"].isoformat(" ") == f"{AT}+00:00"
    assert first["plain"].isoformat(" ") == AT
    assert sorted(str(row["plain"]) for row in visits)[1] == "2026-03-08 02:30:00"
    days = {
        (str(r["day"]), str(r["plain"]), r["hour"], r["n"])
        for r in query_builder(view_path(lake, "days"))
    }
    assert days == {
        ("2026-01-31", "2026-01-31", 23, 1),
        ("2026-11-01", "2026-03-08", 5, 1),
        ("2026-11-01", "2026-11-01", 6, 1),
    }
    search = made.settings.require_search()
    with connect(search) as client:
        client.indices.refresh()
        for name in ("public.visits", "seen"):
            hits = client.search(index=f"{search.index_prefix}{name}", body={"size": 10})["hits"]
            documents = {hit["_id"]: hit["_source"] for hit in hits["hits"]}
            assert sorted(documents) == [
                "2026-01-31T23:30:00.000000Z",
                "2026-11-01T05:30:00.000000Z",
                "2026-11-01T06:30:00.000000Z",
            ]
            document = documents["2026-01-31T23:30:00.000000Z"]
            assert (document["at"], document["plain"]) == (
                "2026-01-31T23:30:00.000000Z",
                "2026-01-31T23:30:00.000000",
            ), json.dumps(document)
            if name == "seen":
                assert (document["hour"], document["day"]) == (23, "2026-01-31")
                assert document["place"]["since"] == "2026-01-31T23:30:00.000000"
    run(database, f"DELETE FROM visits WHERE at = '{AT}Z'", "UPDATE visits SET place = 2")
    made.wait_until_logged(made.wal_end(), daemon)
    done = made.millrace("merge", "all", environment=zone)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert len(query_builder(table_path(lake, TableName("public", "visits")))) == 2
    with connect(search) as client:
        client.indices.refresh()
        for name in ("public.visits", "seen"):
            hits = client.search(index=f"{search.index_prefix}{name}", body={"size": 10})["hits"]
            assert {
                hit["_source"]["place"] if name != "seen" else hit["_id"][:10]
                for hit in hits["hits"]
            } in ({2}, {"2026-11-01"})
            assert hits["total"]["value"] == 2
    asked = made.millrace("query", "-f", "csv", "SELECT CAST(since AS string) FROM places")
    assert AT in asked.stdout
