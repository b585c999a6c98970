"""The flights of New York: every row, unique keys, and a workload that changes them all."""

import time
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deploy.demo import flights, workload
from deploy.local.postgres import Postgres

pytestmark = pytest.mark.postgres

Conninfo = dict[str, str]

CHECKSUM = """
    SELECT string_agg(md5(t::text), ',' ORDER BY t::text COLLATE "C") FROM
    (SELECT f::text FROM flights f UNION ALL SELECT a::text FROM airports a
     UNION ALL SELECT w::text FROM weather w UNION ALL SELECT p::text FROM planes p
     UNION ALL SELECT l::text FROM airlines l) AS t
"""


def value(conninfo: Conninfo, query: str) -> object:
    with psycopg.connect(make_conninfo(**conninfo)) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


@pytest.mark.proof
def test_everything_is_loaded(database: Conninfo) -> None:
    reported: list[str] = []
    rows = flights.load(database, reported.append)
    assert rows == {
        "airlines": 16,
        "airports": 1458,
        "planes": 3322,
        "weather": 26_115,
        "flights": flights.FLIGHTS_ROWS,
    }
    assert reported == list(rows)
    for table, count in rows.items():
        assert value(database, f"SELECT count(*) FROM {table}") == count
    # Sums of the package's files, so that no value was rounded or shifted.
    assert value(database, "SELECT sum(distance)::int FROM flights") == 350_217_607
    assert value(database, "SELECT sum(air_time) FROM flights") == 49_326_610
    assert value(database, "SELECT count(*) FROM flights WHERE cancelled") == 8_255
    assert str(value(database, "SELECT sum(humid) FROM weather")) == "1632909.96"
    assert value(database, "SELECT count(DISTINCT flight_date) FROM flights") == 365


@pytest.mark.proof
def test_a_limit_takes_flights_of_the_whole_year(database: Conninfo) -> None:
    assert flights.load(database, flights_limit=700)["flights"] == 700
    assert value(database, "SELECT count(DISTINCT month) FROM flights") == 12


def test_a_key_that_is_not_unique_is_named(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    weather = replace(flights.TABLES[3], key="origin, year, month, day, hour")
    tables = (*flights.TABLES[:3], weather, flights.TABLES[4])
    monkeypatch.setattr(flights, "TABLES", tables)
    with pytest.raises(flights.FlightsError, match=r"weather: \(origin.*\) isn't unique"):
        flights.load(database)
    assert value(database, "SELECT to_regclass('weather')") is None


@pytest.fixture
def small(database: Conninfo) -> Conninfo:
    flights.load(database, flights_limit=3000)
    return database


def test_every_kind_of_change_happens(small: Conninfo) -> None:
    carriers = value(small, "SELECT array_agg(carrier ORDER BY carrier) FROM airlines")
    airports = value(small, "SELECT array_agg(faa ORDER BY faa) FROM airports")
    kinds = workload.run(small, 400, seed=3)
    assert kinds.total() == 400
    assert set(kinds) == set(workload._KINDS)
    assert value(small, "SELECT array_agg(carrier ORDER BY carrier) FROM airlines") != carriers
    assert value(small, "SELECT array_agg(faa ORDER BY faa) FROM airports") != airports
    grown = kinds["add"] - kinds["delete"]
    assert value(small, "SELECT count(*) FROM flights") == 3000 + grown
    assert value(small, "SELECT count(*) FROM airports WHERE former_names <> '{}'") != 0
    assert value(small, "SELECT count(*) FROM weather WHERE visib = 0.25 AND wind_gust >= 40") != 0


@pytest.mark.proof
def test_equal_seeds_make_equal_databases(small: Conninfo, postgres: Postgres) -> None:
    twin = postgres.create_database(f"{small['dbname']}_twin")
    flights.load(twin, flights_limit=3000)
    for database in (small, twin):
        workload.run(database, 300, seed=7)
        workload.run(database, 300, seed=8)
    assert value(small, CHECKSUM) == value(twin, CHECKSUM)
    postgres.drop_database(twin["dbname"])


@pytest.mark.proof
def test_rate_is_kept(small: Conninfo) -> None:
    started = time.monotonic()
    workload.run(small, 200, rate=400)
    assert 0.45 < time.monotonic() - started < 5


@pytest.mark.proof
def test_unthrottled_it_makes_thousands_a_second(small: Conninfo) -> None:
    started = time.monotonic()
    workload.run(small, 2000)
    assert time.monotonic() - started < 5  # half a second on a quiet machine
