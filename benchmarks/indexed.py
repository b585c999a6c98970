"""A lakehouse's log, and a search server -> loads of its indexes, timed, and what is in them.

What loads an index without Millrace gets the same mapping and the same settings.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from opensearchpy import OpenSearch as Client
from opensearchpy.helpers import parallel_bulk, scan

from benchmarks.lakehouse import Content, Lake, Turn
from benchmarks.scene import cpu_of_all_s
from cdc.settings import Settings
from cdc.settings.search import SearchSettings
from deploy.local.opensearch import OpenSearch
from sinks.log.topics import MillraceTopics
from sinks.run.options import RunContext, RunOptions
from sinks.run.summary import RunSummary
from sinks.search.client import connect
from sinks.search.run import run_search

_SCAN_SIZE: Final = 5_000
_WARM_DOCUMENTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Indexed:
    """Indexes of a lakehouse's log, under a prefix of their own."""

    lake: Lake
    server: OpenSearch
    prefix: str = "bench."
    tables: Sequence[str] | None = None
    documents: Sequence[Mapping[str, Any]] = ()

    @property
    def settings(self) -> Settings:
        """How a run gets at log, lakehouse and indexes."""
        values = {
            "url": self.server.url,
            "index.prefix": self.prefix,
            "tables": self.tables,
            "documents": self.documents,
        }
        search = SearchSettings.model_validate(values)
        return self.lake.settings.model_copy(update={"search": search})

    def client(self) -> Client:
        """A client of the server."""
        search = self.settings.search
        assert search is not None  # noqa: S101 (just made)
        return connect(search)

    def merge(self) -> RunSummary:
        """Let Millrace bring the indexes up to date, as one run does; raises where one fails."""
        context = RunContext(self.settings, self.lake.session, lambda _: None, RunOptions())
        log = MillraceTopics(context)
        done = run_search(context, log)
        log.forget()
        if done.exit_code != 0:
            raise RuntimeError("; ".join(map(str, done.tables)) or done.line())
        return done

    def forget(self) -> None:
        """Delete the indexes, and what is known of them."""
        client = self.client()
        for index in client.indices.get(index=f"{self.prefix}*"):
            client.indices.delete(index=index)


def warm_up(server: OpenSearch) -> None:
    """Have a server index what nobody needs: its JVM then has compiled what everybody runs."""
    client = Client(hosts=[server.url], timeout=60)
    for number in range(2):
        documents = (
            {"_index": "warm", "_id": str(id_), "text": f"{number} of {id_}", "number": id_}
            for id_ in range(_WARM_DOCUMENTS)
        )
        for ok, answer in parallel_bulk(client, documents):
            if not ok:
                raise RuntimeError(str(answer))
    client.indices.delete(index="warm")


def turn_of(load: Indexed, name: str, ids: Collection[str], apply: Callable[[], object]) -> Turn:
    """Let an index be loaded, look at some of its documents, and delete it again."""
    started, used_s = time.monotonic(), cpu_of_all_s()
    apply()
    seconds, used_s = time.monotonic() - started, cpu_of_all_s() - used_s
    content = content_of(load.client(), f"{load.prefix}{name}", ids)
    load.forget()
    return Turn(seconds, used_s, content)


def content_of(client: Client, index: str, ids: Collection[str]) -> Content:
    """How many documents there are, and a checksum of some."""
    client.indices.refresh(index=index)
    rows = client.count(index=index)["count"]
    docs = client.mget(index=index, body={"ids": list(ids)})["docs"]
    return Content(rows, checksum((document["_id"], document["_source"]) for document in docs))


def checksum(documents: Iterable[tuple[str, Any]]) -> int:
    """A number that tells the same documents from others, whatever their order."""
    total = 0
    for document in documents:
        text = json.dumps(document, sort_keys=True).encode()
        total ^= int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    return total


def documents_of(client: Client, index: str) -> list[dict[str, Any]]:
    """All documents, as the client's helpers take them."""
    client.indices.refresh(index=index)
    hits = scan(client, index=index, size=_SCAN_SIZE, query={"query": {"match_all": {}}})
    return [{"_id": hit["_id"], "_source": hit["_source"]} for hit in hits]
