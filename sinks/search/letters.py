"""Documents that the server refuses → dead letters: an index of their own, with the reason.

A letter stands for a document until that is written or deleted after all, by a later change or by a
rebuild. It is never sent again itself, since the row may be gone by then.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from opensearchpy import NotFoundError, OpenSearch, RequestError

from cdc.settings import SearchSettings
from sinks.search.retries import insist
from sinks.summary import TableResult

MADE_MAX: Final = 1_000
"""Of one executor: more than so many refusals are no matter of single documents."""
KNOWN_MAX: Final = 10_000
_REASON_CHARS_MAX: Final = 2_000
_MAPPING: Final = {
    "dynamic": False,
    "properties": {
        "alias": {"type": "keyword"},
        "document": {"type": "keyword", "ignore_above": 1_000},
        "ts_ms": {"type": "date", "format": "epoch_millis"},
    },
}


class Refused(NamedTuple):
    """A document that the server didn't take, at a version, and what it said."""

    document: str
    version: int
    source: str
    reason: str


class Letters:
    """The letters about the documents behind one ``alias`` (all: None)."""

    def __init__(self, client: OpenSearch, prefix: str, alias: str | None) -> None:
        self.index = letters_index(prefix)
        self._client = client
        self._alias = alias

    def create(self) -> None:
        """Make the index where it doesn't exist yet."""
        settings = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
        body = {"settings": settings, "mappings": _MAPPING}

        def send() -> None:
            try:
                self._client.indices.create(index=self.index, body=body)
            except RequestError as failure:
                if failure.error != "resource_already_exists_exception":
                    raise

        if not insist(lambda: self._client.indices.exists(index=self.index), self._where):
            insist(send, self._where)

    def write(self, refused: Iterable[Refused]) -> None:
        """Write letters; those that are there already get the newer reason."""
        lines: list[str] = []
        for one in refused:
            head = {"index": {"_index": self.index, "_id": self._id(one.document)}}
            letter = {
                "alias": self._alias,
                "document": one.document,
                "version": one.version,
                "reason": one.reason[:_REASON_CHARS_MAX],
                "source": one.source,
                "ts_ms": int(time.time() * 1000),
            }
            lines += [json.dumps(head), json.dumps(letter)]
        self._send(lines)

    def remove(self, documents: Iterable[str]) -> None:
        """Remove the letters about documents that are as they should be now."""
        self._send([
            json.dumps({"delete": {"_index": self.index, "_id": self._id(document)}})
            for document in documents
        ])  # fmt: skip

    def forget(self) -> None:
        """Remove all of them."""
        self.remove(self.documents())

    def documents(self) -> frozenset[str]:
        """The ids of documents that there are letters about."""
        return frozenset(letter["document"] for letter in self.all())

    def all(self) -> list[dict[str, Any]]:
        """The letters, oldest first; of very many, the first ones."""
        query = {"term": {"alias": self._alias}} if self._alias else {"match_all": {}}
        body = {"query": query, "size": KNOWN_MAX, "sort": [{"ts_ms": "asc"}]}

        def ask() -> list[dict[str, Any]]:
            try:
                self._client.indices.refresh(index=self.index)
                answer = self._client.search(index=self.index, body=body)
            except NotFoundError:
                return []
            return [hit["_source"] for hit in answer["hits"]["hits"]]

        return insist(ask, self._where)

    def counts(self) -> dict[str, int]:
        """How many there are, by alias."""
        body: Mapping[str, Any] = {
            "size": 0,
            "aggs": {"by": {"terms": {"field": "alias", "size": KNOWN_MAX}}},
        }

        def ask() -> dict[str, int]:
            try:
                answer = self._client.search(index=self.index, body=body)
            except NotFoundError:
                return {}
            found = answer.get("aggregations", {}).get("by", {}).get("buckets", [])
            return {one["key"]: one["doc_count"] for one in found}

        return insist(ask, self._where)

    def _send(self, lines: Collection[str]) -> None:
        if lines:
            body = "".join(f"{line}\n" for line in lines)
            insist(lambda: self._client.bulk(body=body), self._where)

    def _id(self, document: str) -> str:
        return hashlib.sha256(f"{self._alias}\n{document}".encode()).hexdigest()

    @property
    def _where(self) -> str:
        return f"index {self.index}"


def letters_index(prefix: str) -> str:
    """Where letters are."""
    return f"{prefix}millrace-dead-letters"


def replayed(
    client: OpenSearch,
    settings: SearchSettings,
    index: tuple[str, str],
    again: Callable[[Collection[str]], None],
) -> TableResult:
    """Make the refused documents of an index (its name and alias) ``again``.

    What comes of it: accepted ones are updated; of rows that are gone by now the letters go, too.
    """
    name, alias = index
    letters = Letters(client, settings.index_prefix, alias)
    before, began, started = letters.documents(), int(time.time() * 1000), time.monotonic()
    if before:
        again(before)
    left = {letter["document"]: letter["ts_ms"] for letter in letters.all()}
    gone = [document for document, ts_ms in left.items() if document in before and ts_ms < began]
    letters.remove(gone)
    accepted = len(before - left.keys())
    seconds = time.monotonic() - started
    return TableResult(name, len(before), 0, accepted, len(gone), seconds=seconds)
