"""Documents that the server refuses → dead letters: a separate index, with the reasons.

A dead letter replaces a document of one index until a later change or a rebuild writes or deletes
that document. It is never sent again itself, since the row may no longer exist.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch

from cdc.errors import SinkError, SinkUnreachableError
from cdc.settings.search import DEAD_LETTER_INDEX
from sinks.run.summary import TableResult
from sinks.search.client import IF_THERE, PATIENT, Backoff, create_own, fetch, insist, is_busy

MADE_MAX: Final = 1_000
"""Of one executor. More refusals aren't a problem of single documents."""
_PAGE: Final = 1_000
_ALIASES_MAX: Final = 10_000
_REASON_CHARS_MAX: Final = 2_000
_MAPPING: Final = {
    "dynamic": False,
    "properties": {
        "alias": {"type": "keyword"},
        "index": {"type": "keyword"},
        "document": {"type": "keyword", "ignore_above": 1_000},
        "ts_ms": {"type": "date", "format": "epoch_millis"},
    },
}


class RefusedDocument(NamedTuple):
    """A document that the server refused, at a version, and the server's reason."""

    document: str
    version: int
    source: str
    reason: str


class DocumentDeadLetter(NamedTuple):
    """The dead letter about a document. Each write of it changes its ``seq_no``."""

    version: int
    seq_no: int


class DocumentDeadLetters:
    """The dead letters about documents of one ``alias`` and ``index``, or of all (None)."""

    def __init__(
        self, client: OpenSearch, prefix: str, alias: str | None, index: str | None = None
    ) -> None:
        self.index = f"{prefix}{DEAD_LETTER_INDEX}"
        self._where = f"index {self.index}"
        self._client = client
        self._alias = alias
        self._about = index

    def create(self) -> None:
        """Create the index if it doesn't exist yet."""
        create_own(self._client, self.index, _MAPPING, self._where)

    def write(self, refused: Iterable[RefusedDocument]) -> None:
        """Write dead letters. Existing ones get the newer reason.

        Raise SinkError if they can't be stored, as the documents would be lost silently.
        """
        lines: list[str] = []
        for document in refused:
            head = {"index": {"_index": self.index, "_id": self._id(document.document)}}
            dead_letter = {
                "alias": self._alias,
                "index": self._about,
                "document": document.document,
                "version": document.version,
                "reason": document.reason[:_REASON_CHARS_MAX],
                "source": document.source,
                "ts_ms": int(time.time() * 1000),
            }
            lines.append(f"{json.dumps(head)}\n{json.dumps(dead_letter)}\n")
        self._send(lines)

    def remove(self, documents: Iterable[str]) -> None:
        """Remove the dead letters about documents that have been written or deleted after all."""
        self._send([
            json.dumps({"delete": {"_index": self.index, "_id": self._id(document)}}) + "\n"
            for document in documents
        ])  # fmt: skip

    def by_document(self) -> dict[str, DocumentDeadLetter]:
        """Return the dead letters, by the ids of their documents."""
        return {
            hit["_source"]["document"]: DocumentDeadLetter(
                hit["_source"]["version"], hit["_seq_no"]
            )
            for hit in self._hits(["document", "version"])
        }

    def all(self) -> Iterator[dict[str, Any]]:
        """Return the dead letters, with the refused documents."""
        return (hit["_source"] for hit in self._hits(None))

    def sources(self, documents: Sequence[str]) -> dict[str, tuple[int, dict[str, Any]]]:
        """Return version and fields of those of the documents that were refused."""
        ids = {self._id(document): document for document in documents}
        if not ids:
            return {}
        return {
            ids[hit["_id"]]: (hit["_source"]["version"], json.loads(hit["_source"]["source"]))
            for hit in fetch(self._client, self.index, {"ids": list(ids)})
            if hit.get("found")
        }

    def forget(self, *, but_of: str | None = None) -> None:
        """Remove all of them, except those about documents of this index."""
        query: dict[str, Any] = {"bool": {"filter": self._filters()}}
        if but_of is not None:
            query["bool"]["must_not"] = [{"term": {"index": but_of}}]
        params = {"conflicts": "proceed", "refresh": "true", **IF_THERE}
        self._refresh()
        body = {"query": query}
        insist(
            lambda: self._client.delete_by_query(index=self.index, body=body, params=params),
            self._where,
        )

    def counts(self) -> dict[str, int]:
        """Return their number, by alias."""
        body: Mapping[str, Any] = {
            "size": 0,
            "aggs": {"by": {"terms": {"field": "alias", "size": _ALIASES_MAX}}},
        }

        self._refresh()
        buckets = self._search(body).get("aggregations", {}).get("by", {}).get("buckets", [])
        return {bucket["key"]: bucket["doc_count"] for bucket in buckets}

    def _refresh(self) -> None:
        insist(lambda: self._client.indices.refresh(index=self.index, params=IF_THERE), self._where)

    def _search(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return insist(
            lambda: self._client.search(index=self.index, body=body, params=IF_THERE), self._where
        )

    def _filters(self) -> list[dict[str, Any]]:
        wanted = {"alias": self._alias, "index": self._about}
        return [{"term": {name: value}} for name, value in wanted.items() if value is not None]

    def _hits(self, fields: list[str] | None) -> Iterator[dict[str, Any]]:
        """Yield all matches, in pages, as a dead letter has a whole document."""
        body: dict[str, Any] = {
            "query": {"bool": {"filter": self._filters()}},
            "size": _PAGE if fields else _PAGE // 10,
            "sort": [{"alias": "asc"}, {"document": "asc"}, {"index": "asc"}],
            "seq_no_primary_term": True,
            "_source": fields or True,
        }

        self._refresh()
        while page := self._search(body)["hits"]["hits"]:
            yield from page
            body["search_after"] = page[-1]["sort"]

    def _send(self, actions: list[str]) -> None:
        backoff = Backoff(PATIENT)
        while actions:
            body = "".join(actions)
            answer = insist(lambda body=body: self._client.bulk(body=body), self._where)  # type: ignore[misc]
            results = [next(iter(item.values())) for item in answer["items"]]
            refused = [
                result for result in results if "error" in result and not is_busy(result["status"])
            ]
            if refused:
                raise SinkError(
                    f"can't store dead letters: {refused[0]['error'].get('reason')}",
                    where=self._where,
                    remedy="correct the reason; nothing of this run counts as applied, and the next"
                    " run repeats it",
                )
            actions = [
                action
                for action, result in zip(actions, results, strict=True)
                if is_busy(result["status"])
            ]
            if actions and not backoff.wait():
                raise SinkUnreachableError(
                    "the search server was too busy to store dead letters",
                    where=self._where,
                    remedy="check its load and its disk; the next run continues",
                )

    def _id(self, document: str) -> str:
        return hashlib.sha256(f"{self._about}\n{document}".encode()).hexdigest()


def replayed(
    name: str, dead_letters: DocumentDeadLetters, again: Callable[[Collection[str]], None]
) -> TableResult:
    """Write an index's refused documents ``again``. The result counts accepted ones as updated.

    A dead letter whose row is gone is removed.
    """
    before, started = dead_letters.by_document(), time.monotonic()
    if before:
        again(before)
    left = dead_letters.by_document()
    gone = [
        document
        for document, dead_letter in left.items()
        if document in before and dead_letter.seq_no == before[document].seq_no
    ]
    dead_letters.remove(gone)
    accepted, seconds = len(before.keys() - left.keys()), time.monotonic() - started
    return TableResult(name, len(before), 0, accepted, len(gone), seconds=seconds)
