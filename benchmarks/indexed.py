"""A lakehouse's log, and a search server -> loads of its indexes, timed, and what is in them.

What loads an index without Millrace gets the same mapping and the same settings.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from opensearchpy import OpenSearch as Client
from opensearchpy.helpers import scan

from benchmarks.lakehouse import Content, Lake, Turn, jvm_pid
from benchmarks.scene import cpu_s, say
from cdc.settings import Settings
from cdc.settings.search import SearchSettings
from deploy.local.opensearch import OpenSearch
from sinks.search.client import connect
from sinks.search.run import run_search
from sinks.summary import RunSummary

_SCAN_SIZE: Final = 5_000


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
        told = {
            "url": self.server.url,
            "index.prefix": self.prefix,
            "tables": self.tables,
            "documents": self.documents,
        }
        search = SearchSettings.model_validate(told)
        return self.lake.settings.model_copy(update={"search": search})

    def client(self) -> Client:
        """A client of the server."""
        search = self.settings.search
        assert search is not None  # noqa: S101 (just made)
        return connect(search)

    def merge(self) -> RunSummary:
        """Let Millrace bring the indexes up to date, as one run does; raises where one fails."""
        spark = self.lake.spark
        done = run_search(self.settings, lambda _records=0: spark, lambda _: None)
        if done.exit_code != 0:
            raise RuntimeError("; ".join(map(str, done.tables)) or done.line())
        return done

    def forget(self) -> None:
        """Delete the indexes, and what is known of them."""
        client = self.client()
        for index in client.indices.get(index=f"{self.prefix}*"):
            client.indices.delete(index=index)


def turn_of(load: Indexed, name: str, ids: Collection[str], apply: Callable[[], object]) -> Turn:
    """Let an index be loaded, look at some of its documents, and delete it again."""
    pids = {
        "server": load.server.process.pid if load.server.process else 0,
        "jvm": jvm_pid(load.lake.spark),
    }
    before = _processors(pids)
    started = time.monotonic()
    apply()
    seconds = time.monotonic() - started
    used = {part: now - before[part] for part, now in _processors(pids).items()}
    say(f"  {', '.join(f'{part} {spent:.1f} s' for part, spent in used.items())} of CPU")
    content = content_of(load.client(), f"{load.prefix}{name}", ids)
    load.forget()
    return Turn(seconds, sum(used.values()), content)


def _processors(pids: Mapping[str, int]) -> dict[str, float]:
    """Processor time of the server, of Spark's JVM, of its Python workers, and our own."""
    return {
        **{part: cpu_s(pid) for part, pid in pids.items()},
        "workers": sum(map(_with_ended, _descendants(pids["jvm"]))),
        "driver": time.process_time(),
    }


def _descendants(pid: int) -> Collection[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text(encoding="ascii").split()):
            found += [child, *_descendants(child)]
    return found


def _with_ended(pid: int) -> float:
    """Processor time of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def content_of(client: Client, index: str, ids: Collection[str]) -> Content:
    """How many documents there are, and a checksum of some."""
    client.indices.refresh(index=index)
    rows = client.count(index=index)["count"]
    docs = client.mget(index=index, body={"ids": list(ids)})["docs"]
    return Content(rows, checksum((one["_id"], one["_source"]) for one in docs))


def checksum(documents: Iterable[tuple[str, Any]]) -> int:
    """A number that tells the same documents from others, whatever their order."""
    found = 0
    for document in documents:
        text = json.dumps(document, sort_keys=True).encode()
        found ^= int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    return found


def documents_of(client: Client, index: str) -> list[dict[str, Any]]:
    """All documents, as the client's helpers take them."""
    client.indices.refresh(index=index)
    hits = scan(client, index=index, size=_SCAN_SIZE, query={"query": {"match_all": {}}})
    return [{"_id": hit["_id"], "_source": hit["_source"]} for hit in hits]
