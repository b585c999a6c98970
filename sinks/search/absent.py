"""Actions that lack fields → actions with the values that the index has for them.

An update that leaves a big value untouched doesn't carry it (PostgreSQL's unchanged TOAST), and a
bulk request can't both merge a document and keep its external version. So the stored values are
read, in the executor that writes the document, and the document is written whole. A filled value
(docs/decisions/0007) gives way to the stored one in the same way.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from opensearchpy import OpenSearch

from sinks.search.bulk import Action
from sinks.search.documents import ABSENT_FIELD
from sinks.search.retries import PATIENT, Patience, insist

_FIRST_FETCH: Final = 16
_FETCH_MAX: Final = 500


class Completion:
    """Fills absent fields as actions pass by; afterwards, ``incomplete`` counts the failures."""

    def __init__(
        self, client: OpenSearch, index: str, bytes_max: int, patience: Patience = PATIENT
    ) -> None:
        self.incomplete = 0
        self._client = client
        self._index = index
        self._bytes_max = bytes_max
        self._patience = patience
        self._fetch = _FIRST_FETCH

    def fill(self, actions: Iterable[Action]) -> Iterator[Action]:
        """The same actions, complete as far as the index can tell; their order may change."""
        lacking: list[Action] = []
        for action in actions:
            if not (action.absent or action.filled) or action.source is None:
                yield action
                continue
            lacking.append(action)
            if len(lacking) >= self._fetch:
                yield from self._filled(lacking)
                lacking = []
        if lacking:
            yield from self._filled(lacking)

    def _filled(self, lacking: list[Action]) -> Iterator[Action]:
        """As many at a time as keep the answer, judged by the last one, below bytes_max."""
        docs = [
            {"_id": action.id, "_source": [*action.absent, *action.filled, ABSENT_FIELD]}
            for action in lacking
        ]
        answer = insist(
            lambda: self._client.mget(index=self._index, body={"docs": docs}),
            f"index {self._index}",
            self._patience,
        )
        size = 0
        for action, found in zip(lacking, answer["docs"], strict=True):
            filled = self._merge(action, found.get("_source") if found.get("found") else None)
            size += len(filled.source or "")
            yield filled
        self._fetch = max(1, min(_FETCH_MAX, self._bytes_max * len(lacking) // max(size, 1)))

    def _merge(self, action: Action, stored: dict[str, Any] | None) -> Action:
        unknown = action.absent if stored is None else tuple(stored.get(ABSENT_FIELD, ()))
        missing = tuple(field for field in action.absent if field in unknown)
        document = json.loads(action.source or "{}")
        for field in (*action.absent, *action.filled):
            if stored is None or field in unknown:
                continue
            document.pop(field, None)
            if stored.get(field) is not None:
                document[field] = stored[field]
        if missing:
            self.incomplete += 1
            document[ABSENT_FIELD] = list(missing)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return Action(action.id, action.version, text)
