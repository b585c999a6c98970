"""Commits at a steady pace -> how long after each a search finds what it wrote."""

import threading
import time
from argparse import Namespace
from collections.abc import Mapping
from statistics import quantiles
from typing import Final

from opensearchpy import OpenSearch as Client

from benchmarks import joined
from benchmarks.scene import Scene, say
from benchmarks.search_pgsync import followed
from deploy.demo.proof import connect
from deploy.local.opensearch import OpenSearch

Figures = dict[str, object]
_FIRST: Final = 100_000
"""No flight is so late: what is above is a commit's number."""
_LOOK_S: Final = 0.05
_WITHIN_S: Final = 300.0
_NEWEST: Final = {"size": 0, "aggs": {"newest": {"max": {"field": "dep_delay"}}}}


def freshness(made: Scene, server: OpenSearch, options: Namespace) -> Figures:
    """Each commit changes another flight; they are seen in their order."""
    rows, rate, seconds = options.fresh_flights, options.rate, options.seconds
    source = made.postgres.create_database("fresh")
    joined.load(source, rows, numbered=True)
    with followed(made, server, "fresh", source) as (client, index):
        _wait_until_there(client, index, rows)
        say(f"freshness: {rate} commits/s into {rows:,} joined documents")
        waits = _watch(client, index, source, rate, options.warm_up + seconds)
    waits = waits[options.warm_up * rate :]
    cuts = quantiles(waits, n=100)
    say(f"  p50 {cuts[49]:.1f} s, p95 {cuts[94]:.1f} s")
    return {
        "fresh_flights": rows,
        "fresh_commits": len(waits),
        "fresh_p50_s": round(cuts[49], 2),
        "fresh_p95_s": round(cuts[94], 2),
    }


def _wait_until_there(client: Client, index: str, rows: int) -> None:
    until = time.monotonic() + _WITHIN_S
    while not client.indices.exists(index=index) or client.count(index=index)["count"] < rows:
        if time.monotonic() > until:
            raise TimeoutError(f"{index} wasn't loaded within {_WITHIN_S:.0f} s")
        time.sleep(1)


def _watch(
    client: Client, index: str, source: Mapping[str, str], rate: int, seconds: int
) -> list[float]:
    """Seconds from each COMMIT until a search finds it or a later one."""
    made: list[float] = []
    writer = threading.Thread(target=_write, args=(source, rate, seconds, made))
    waits: list[float] = []
    until = time.monotonic() + seconds + _WITHIN_S
    writer.start()
    while writer.is_alive() or len(waits) < len(made):
        newest = client.search(index=index, body=_NEWEST)["aggregations"]["newest"]["value"] or 0
        at = time.monotonic()
        waits += [at - committed for committed in made[len(waits) : int(newest) - _FIRST + 1]]
        if at > until:
            raise TimeoutError(f"some commits weren't seen within {_WITHIN_S:.0f} s")
        time.sleep(_LOOK_S)
    writer.join()
    return waits


def _write(source: Mapping[str, str], rate: int, seconds: int, made: list[float]) -> None:
    """Commits at times that don't depend on how long each takes."""
    started = time.monotonic()
    with connect(source) as connection:
        for number in range(rate * seconds):
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
            connection.execute(
                "UPDATE flights SET dep_delay = %s WHERE id = %s", (_FIRST + number, number + 1)
            )
            made.append(time.monotonic())
