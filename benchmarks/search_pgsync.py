"""The same tables in two databases -> the same joined documents, by Millrace and by pgsync.

Both run as a user runs them: Millrace's daemon and `merge all --follow`, pgsync's bootstrap and
daemon; each alone on the machine. Both first load what is there, and then get the same changes.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

from opensearchpy import NotFoundError
from opensearchpy import OpenSearch as Client

from benchmarks import joined
from benchmarks.pgsync import Pgsync
from benchmarks.scene import Scene, cpu_of_all_s, say
from deploy.demo.proof import connect
from deploy.local.opensearch import OpenSearch
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process

Figures = dict[str, object]

_WITHIN_S: Final = 1_800.0
_LOOK_S: Final = 0.2
_MARK: Final = 9_999
_EVERY: Final = 17
_AIRPORT: Final = "EWR"
"""More than a third of all flights start there."""
_RENAMED: Final = "Renamed Field"
_DELAY: Final = "UPDATE flights SET dep_delay = %s WHERE id %% %s = 0"
_RENAME: Final = "UPDATE airports SET name = %s WHERE faa = %s"
_SAMPLE: Final = 500


@contextmanager
def followed(
    made: Scene, server: OpenSearch, name: str, source: Mapping[str, str]
) -> Iterator[tuple[Client, str]]:
    """Millrace on a database, with the joined documents' index alone; and that one's name."""
    folder = made.pipeline.folder / name
    folder.mkdir()
    search = {"tables": [], "documents": [joined.PLAIN]}
    pipeline = Pipeline(
        folder,
        source,
        made.kafka,
        prefix=name,
        search_url=server.url,
        capture={"table.include.list": joined.TABLES},
        sections={"search": search},
    )
    running: list[Process] = []
    try:
        running += [pipeline.start(), pipeline.follow(sink="all")]
        yield Client(hosts=[server.url], timeout=60), f"{name}.flights"
    finally:
        for process in reversed(running):
            process.stop()


def pgsync(made: Scene, server: OpenSearch, options: Namespace) -> Figures:
    """Both ways, one after the other; raises where they end with other documents."""
    rows = options.flights
    ours = made.postgres.create_database("millrace")
    theirs = made.postgres.create_database("pgsync")
    say(f"pgsync: {rows:,} flights, airlines, airports and planes")
    for source in (ours, theirs):
        joined.load(source, rows, numbered=True)
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    samples: dict[str, dict[str, dict[str, Any]]] = {}
    started, used_s = time.monotonic(), cpu_of_all_s()
    with followed(made, server, "joined", ours) as (client, index):
        seconds["load"] = _until(lambda: _count(client, index) == rows, started)
        cpu["load"], used_s = cpu_of_all_s() - used_s, cpu_of_all_s()
        rounds = {"changes": _changes(ours, client, index, options.rounds)}
        cpu["changes"] = cpu_of_all_s() - used_s
        samples["millrace"] = _sample(client, index)
    peer = Pgsync(made.pipeline.folder / "pgsync", theirs, server, "pgsync", joined.NODES)
    peer.start_queue()
    try:
        started, used_s = time.monotonic(), cpu_of_all_s()
        peer.start()
        seconds["pgsync_load"] = _until(lambda: _count(client, "pgsync") == rows, started)
        cpu["pgsync_load"], used_s = cpu_of_all_s() - used_s, cpu_of_all_s()
        rounds["pgsync_changes"] = _changes(theirs, client, "pgsync", options.rounds)
        cpu["pgsync_changes"] = cpu_of_all_s() - used_s
        samples["pgsync"] = _sample(client, "pgsync")
    finally:
        peer.stop()
    if samples["millrace"] != samples["pgsync"]:
        raise RuntimeError(_difference(samples["millrace"], samples["pgsync"]))
    # The first one finds no code compiled in a JVM that goes on for weeks.
    seconds |= {name: median(took[1:] or took) for name, took in rounds.items()}
    load, changes = (seconds[f"pgsync_{part}"] / seconds[part] for part in ("load", "changes"))
    return {
        "flights": rows,
        **{f"{part}_pgsync_stage_s": round(took, 1) for part, took in seconds.items()},
        "runs_changes_s": [[round(seconds, 1) for seconds in took] for took in rounds.values()],
        "cpu_pgsync_stage_s": {part: round(used, 1) for part, used in cpu.items()},
        "documents_per_s_load": round(rows / seconds["load"]),
        "ratio_to_pgsync_load": round(load, 2),
        "ratio_to_pgsync_changes": round(changes, 2),
        "ratio_to_pgsync": round(min(load, changes), 2),
    }


def _changes(source: Mapping[str, str], client: Client, index: str, rounds: int) -> list[float]:
    return [_change(source, client, index, number) for number in range(rounds)]


def _change(source: Mapping[str, str], client: Client, index: str, number: int) -> float:
    """Change flights, and an airport that many have; seconds from the COMMIT on."""
    mark, name = _MARK + number, f"{_RENAMED} {number}"
    with connect(source) as connection:
        with connection.transaction():
            connection.execute(_DELAY, (mark, _EVERY))
            connection.execute(_RENAME, (name, _AIRPORT))
        committed = time.monotonic()
        expected = connection.execute(
            "SELECT count(*) FILTER (WHERE dep_delay = %s), count(*) FILTER (WHERE origin = %s)"
            " FROM flights",
            (mark, _AIRPORT),
        ).fetchone()
    marked = {"term": {"dep_delay": mark}}
    renamed = {"term": {"airport.name.keyword": name}}
    say(f"  {expected} documents are to be others")
    return _until(
        lambda: tuple(_count(client, index, query) for query in (marked, renamed)) == expected,
        committed,
    )


def _until(is_so: Callable[[], bool], since: float) -> float:
    """Seconds from then until it is so."""
    while not is_so():
        if time.monotonic() - since > _WITHIN_S:
            raise TimeoutError(f"not all documents can be searched within {_WITHIN_S:.0f} s")
        time.sleep(_LOOK_S)
    seconds = time.monotonic() - since
    say(f"  all can be searched after {seconds:.1f} s")
    return seconds


def _count(client: Client, index: str, query: Mapping[str, Any] | None = None) -> int:
    """How many documents a search finds now."""
    body = {"query": query} if query is not None else None
    try:
        count: int = client.count(index=index, body=body)["count"]
    except NotFoundError:
        return 0
    return count


def _sample(client: Client, index: str) -> dict[str, dict[str, Any]]:
    ids = [str(number * _EVERY // 2) for number in range(1, _SAMPLE)]
    answer = client.mget(index=index, body={"ids": ids})
    return {hit["_id"]: joined.plain(hit["_source"]) for hit in answer["docs"]}


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    key = next(key for key, document in ours.items() if document != theirs[key])
    return f"the document {key} is {ours[key]}, and pgsync's {theirs[key]}"
