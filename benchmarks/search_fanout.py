"""A row that a hundred thousand documents have -> how long until all of them are others."""

import time
from argparse import Namespace
from statistics import median
from typing import Final

from benchmarks.indexed import Indexed
from benchmarks.lakehouse import wait_until_logged
from benchmarks.scene import Scene, say
from deploy.local.processes import Process

Figures = dict[str, object]
_AIRPORTS: Final = ("JFK", "EWR", "LGA")
"""All flights start from one of them."""


def fanout(made: Scene, load: Indexed, daemon: Process, options: Namespace) -> Figures:
    """Rename an airport each round; the lakehouse is brought up to date before that is timed."""
    load.merge()
    client, index = load.client(), f"{load.prefix}flights"
    documents: list[int] = []
    seconds: list[float] = []
    merges: list[float] = []
    for number in range(options.rounds):
        airport, name = _AIRPORTS[number % len(_AIRPORTS)], f"Field No. {number}"
        with made.connect() as connection:
            connection.execute("UPDATE airports SET name = %s WHERE faa = %s", (name, airport))
            found = connection.execute(
                "SELECT count(*) FROM flights WHERE %s IN (origin, dest)", (airport,)
            ).fetchone()
        assert found is not None  # noqa: S101 (an aggregate returns a row)
        wait_until_logged(load.lake, daemon)
        merges.append(load.lake.merge_s())
        started = time.monotonic()
        load.merge()
        seconds.append(time.monotonic() - started)
        documents.append(found[0])
        say(f"  {airport}: {found[0]:,} documents in {seconds[-1]:.1f} s")
        named = [{"term": {f"{field}.name.keyword": name}} for field in ("from", "to")]
        query = {"bool": {"should": named}}
        renamed = client.count(index=index, body={"query": query})["count"]
        if renamed != found[0]:
            raise RuntimeError(f"{renamed} documents have the airport's new name, not {found[0]}")
    load.forget()
    rates = [count / took for count, took in zip(documents, seconds, strict=True)]
    return {
        "fanout_documents": documents,
        "runs_fanout_s": [round(took, 2) for took in seconds],
        "fanout_lakehouse_s": round(median(merges), 2),
        "fanout_documents_per_s": round(median(rates)),
    }
