"""Actions that lack fields → actions with the values that the index has for them.

An update that leaves a big value untouched doesn't carry it (PostgreSQL's unchanged TOAST), and a
bulk request can't both merge a document and keep its external version. So the stored values are
read, in the executor that writes the document, and the document is written whole. A filled value
(docs/decisions/0007) gives way to the stored one in the same way; what is stored as null does not
count, since PostgreSQL leaves nulls in no update out.

Where the server has refused the row's last document, what is stored is older than that: then its
dead letter tells. While the log is read from its start on, step by step, filled values count: what
an earlier step has stored may be older than what compaction has taken before the next one.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from opensearchpy import OpenSearch

from sinks.search.bulk import Action
from sinks.search.documents import ABSENT_FIELD
from sinks.search.retries import PATIENT, Patience, fetch

Refused = Callable[[Sequence[str]], dict[str, tuple[int, dict[str, Any]]]]
"""Ids → version and fields of documents that were refused."""
_FIRST_FETCH: Final = 16
_FETCH_MAX: Final = 500


class Completion:
    """Fills absent fields as actions pass by; afterwards, ``incomplete`` counts the failures."""

    def __init__(
        self,
        client: OpenSearch,
        index: str,
        bytes_max: int,
        patience: Patience = PATIENT,
        *,
        refused: Refused | None = None,
        is_load: bool = False,
    ) -> None:
        self.incomplete = 0
        self._client = client
        self._index = index
        self._bytes_max = bytes_max
        self._patience = patience
        self._refused = refused
        self._is_load = is_load
        self._fetch = _FIRST_FETCH

    def fill(self, actions: Iterable[Action]) -> Iterator[Action]:
        """The same actions, complete as far as the index can tell; their order may change."""
        lacking: list[Action] = []
        for action in actions:
            lacks = action.absent or (action.filled and not self._is_load)
            if not lacks or action.source is None:
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
        answer = fetch(self._client, self._index, {"docs": docs}, self._patience)
        letters = self._refused([action.id for action in lacking]) if self._refused else {}
        size = 0
        for action, found in zip(lacking, answer, strict=True):
            stored = found.get("_source") if found.get("found") else None
            version, refused = letters.get(action.id, (0, None))
            is_newer = refused is not None and version <= action.version
            filled = self._merge(action, refused if is_newer else stored)
            size += len(filled.source or b"")
            yield filled
        self._fetch = max(1, min(_FETCH_MAX, self._bytes_max * len(lacking) // max(size, 1)))

    def _merge(self, action: Action, stored: dict[str, Any] | None) -> Action:
        unknown = action.absent if stored is None else tuple(stored.get(ABSENT_FIELD, ()))
        missing = tuple(field for field in action.absent if field in unknown)
        document = json.loads(action.source or b"{}")
        kept = action.absent if self._is_load else (*action.absent, *action.filled)
        for field in kept:
            if stored is not None and field not in unknown and stored.get(field) is not None:
                document[field] = stored[field]
        if missing:
            self.incomplete += 1
            document[ABSENT_FIELD] = list(missing)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return Action(action.id, action.version, text.encode())
