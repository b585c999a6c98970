"""A number of transactions → a database of flights that changes like a real one.

Flights are delayed, cancelled, deleted, added and renumbered, airports change names, an airline
changes its code together with its flights. Each kind of transaction is a method. The first round
runs one of every kind, then they are chosen by weight. The result depends only on the database and
the seed, never on time, so two runs on equal databases end equal.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

FlightKey = tuple[str, int, datetime]

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_POOL_FLIGHTS_MAX: Final = 20_000
_DELAY: Final = (
    "UPDATE flights SET dep_delay = coalesce(dep_delay, 0) + %s,"
    " arr_delay = coalesce(arr_delay, 0) + %s"
    " WHERE (carrier, flight, time_hour) = (%s, %s, %s)"
)
_CANCEL: Final = (
    "UPDATE flights SET dep_time = NULL, dep_delay = NULL, arr_time = NULL, arr_delay = NULL,"
    " air_time = NULL, cancelled = true"
    " WHERE (carrier, flight, time_hour) = (%s, %s, %s)"
)
_ADD: Final = (
    "INSERT INTO flights SELECT year, month, day, NULL, sched_dep_time, NULL, NULL,"
    " sched_arr_time, NULL, carrier, %s, tailnum, origin, dest, NULL, distance, hour, minute,"
    " time_hour, flight_date, false FROM flights"
    " WHERE (carrier, flight, time_hour) = (%s, %s, %s)"
)
_DELETE: Final = "DELETE FROM flights WHERE (carrier, flight, time_hour) = (%s, %s, %s)"
_RENUMBER: Final = (
    "UPDATE flights SET flight = %s WHERE (carrier, flight, time_hour) = (%s, %s, %s)"
)
_SWAP_PLANE: Final = (
    "UPDATE flights SET tailnum = %s WHERE (carrier, flight, time_hour) = (%s, %s, %s)"
)


def run(
    conninfo: Mapping[str, str],
    transactions: int,
    seed: int = 0,
    *,
    rate: float | None = None,
    hurry: threading.Event | None = None,
) -> Counter[str]:
    """Run that many transactions, `rate` of them a second or as many as the server takes.

    Once `hurry` is set, the rest runs without pauses. Return how many of each kind were run. Those
    of the kind "abandon" are rolled back.
    """
    hurry = hurry or threading.Event()
    kinds: Counter[str] = Counter()
    with psycopg.connect(make_conninfo(**conninfo), autocommit=True) as connection:
        workload = _FlightsWorkload(connection, seed)
        started = time.monotonic()
        for number in range(transactions):
            if rate is not None and not hurry.is_set():
                # If it is behind schedule, it catches up: the rate is an average, as with users.
                hurry.wait(started + number / rate - time.monotonic())
            kind = workload.choose(number)
            getattr(workload, kind)()
            kinds[kind] += 1
    return kinds


class _FlightsWorkload:
    """The existing keys, and the transactions that change their rows."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._random = random.Random(seed)  # noqa: S311 - repeatable is what it has to be
        carriers = self._column(
            "SELECT a.carrier FROM airlines a LEFT JOIN flights f USING (carrier)"
            " GROUP BY a.carrier ORDER BY count(f.carrier), a.carrier"
        )
        self._codes = set(carriers)
        # A new code cascades to all of an airline's flights. So only small airlines get one, and
        # the pool excludes their flights, whose keys change.
        self._recoded = carriers[:2]
        self._flights: list[FlightKey] = self._rows(
            "SELECT carrier, flight, time_hour FROM flights WHERE carrier <> ALL (%s)"
            " ORDER BY hashtextextended(concat(carrier, flight, extract(epoch FROM time_hour)),"
            " %s), carrier, flight, time_hour LIMIT %s",
            (self._recoded, seed, _POOL_FLIGHTS_MAX),
        )
        self._planes = self._column("SELECT tailnum FROM planes ORDER BY 1")
        self._faas = set(self._column("SELECT faa FROM airports"))
        # Excludes the three of New York: a hundred thousand flights would follow a new code.
        self._airports = self._column(
            "SELECT faa FROM airports WHERE faa NOT IN (SELECT origin FROM weather) ORDER BY 1"
        )
        self._hours = self._rows("SELECT origin, time_hour FROM weather ORDER BY 1, 2")
        # New flights get numbers that no flight has, hence new keys.
        self._number = self._column("SELECT coalesce(max(flight), 0) FROM flights")[0]

    def choose(self, number: int) -> str:
        """Return the kind of the next transaction."""
        if number < len(_KINDS):
            return list(_KINDS)[number]
        return self._random.choices(list(_KINDS), list(_KINDS.values()))[0]

    def delay(self) -> None:
        minutes = self._random.randint(5, 90)
        self._do(_DELAY, minutes, minutes - 3, *self._flight())

    def cancel(self) -> None:
        self._do(_CANCEL, *self._flight())

    def delete(self) -> None:
        index = self._random.randrange(len(self._flights))
        key, self._flights[index] = self._flights[index], self._flights[-1]
        self._flights.pop()
        self._do(_DELETE, *key)

    def add(self) -> None:
        carrier, flight, hour = self._flight()
        self._number += 1
        self._flights.append((carrier, self._number, hour))
        self._do(_ADD, self._number, carrier, flight, hour)

    def renumber(self) -> None:
        index = self._random.randrange(len(self._flights))
        carrier, flight, hour = self._flights[index]
        self._number += 1
        self._flights[index] = (carrier, self._number, hour)
        self._do(_RENUMBER, self._number, carrier, flight, hour)

    def swap_plane(self) -> None:
        plane = self._random.choice(self._planes)
        self._do(_SWAP_PLANE, plane, *self._flight())

    def rename_airport(self) -> None:
        name = f"Field No. {self._random.randrange(1_000_000)}"
        self._do(
            "UPDATE airports SET former_names = former_names || name, name = %s WHERE faa = %s",
            name,
            self._random.choice(self._airports),
        )

    def recode_airport(self) -> None:
        index = self._random.randrange(len(self._airports))
        old, new = self._airports[index], self._unused(self._faas, 3)
        self._airports[index] = new
        self._do("UPDATE airports SET faa = %s WHERE faa = %s", new, old)

    def recode_airline(self) -> None:
        index = self._random.randrange(len(self._recoded))
        old, new = self._recoded[index], self._unused(self._codes, 2)
        self._recoded[index] = new
        self._do("UPDATE airlines SET carrier = %s WHERE carrier = %s", new, old)

    def correct_weather(self) -> None:
        degrees = Decimal(self._random.randint(0, 9999)) / 100
        self._do(
            "UPDATE weather SET temp = %s WHERE origin = %s AND time_hour = %s",
            degrees,
            *self._random.choice(self._hours),
        )

    def storm(self) -> None:
        """Change rows of three tables in one transaction."""
        gust = self._random.uniform(40, 70)
        with self._connection.transaction():
            self._do(
                "UPDATE weather SET wind_gust = %s, visib = 0.25"
                " WHERE origin = %s AND time_hour = %s",
                gust,
                *self._random.choice(self._hours),
            )
            self._do(
                "UPDATE planes SET speed = %s WHERE tailnum = %s",
                self._random.randint(90, 450),
                self._random.choice(self._planes),
            )
            for _ in range(3):
                self._do(_DELAY, 120, 110, *self._flight())

    def abandon(self) -> None:
        """Delete and change, and roll everything back."""
        with self._connection.transaction(force_rollback=True):
            self._do(_CANCEL, *self._flight())
            self._do(_DELETE, *self._flight())

    def _flight(self) -> FlightKey:
        return self._random.choice(self._flights)

    def _unused(self, taken: set[str], length: int) -> str:
        while (code := "".join(self._random.choices(_ALPHABET, k=length))) in taken:
            pass
        taken.add(code)
        return code

    def _do(self, statement: LiteralString, *parameters: Any) -> None:
        self._cursor.execute(statement, parameters, prepare=True)

    def _rows(self, query: LiteralString, parameters: tuple[Any, ...] = ()) -> list[Any]:
        return self._cursor.execute(query, parameters).fetchall()

    def _column(self, query: LiteralString) -> list[Any]:
        return [value for (value,) in self._rows(query)]


_KINDS: Final = {
    "delay": 596,
    "cancel": 80,
    "delete": 50,
    "add": 80,
    "renumber": 30,
    "swap_plane": 80,
    "rename_airport": 30,
    "recode_airport": 5,
    "recode_airline": 1,
    "correct_weather": 28,
    "storm": 10,
    "abandon": 10,
}
"""The methods that run a transaction each, and their frequency in a thousand."""
