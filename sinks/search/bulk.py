"""Actions → bulk requests: each document at its version takes effect once, however repeated.

The version is the commit LSN of the change, of type ``external_gte``. The server refuses anything
older than its own version, including deletions, and accepts the same again. So its 409 is a
success. Documents refused by a busy server are sent again, without the others. A document refused
for its content becomes a dead letter, or stops the run, as it must not be left out silently.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch, OpenSearchException

from cdc.errors import SinkError, SinkUnreachableError
from cdc.lines import Lines, on_one_line
from sinks.search.client import (
    PATIENT,
    Backoff,
    Patience,
    blocked,
    explain,
    is_blocked,
    is_busy,
    is_too_large,
    is_transient,
)
from sinks.search.dead_letters import MADE_MAX, DocumentDeadLetters, RefusedDocument

ACTIONS_MAX: Final = 10_000
"""Deletions have few bytes, so this limits the server's answer to one request."""
_REFUSALS_SHOWN: Final = 3
_NEVER: Final = 1 << 63
"""Above any version."""
_ANSWER_FIELDS: Final = "items.*._id,items.*.status,items.*.result,items.*.error"


class Action(NamedTuple):
    """One document's new state. ``source`` is a JSON object; None deletes.

    ``absent`` names the fields that the log has no value for: the index keeps its own. The same
    applies to ``filled``, whose values in ``source`` are for an index without the document.
    """

    id: str
    version: int
    source: bytes | None
    absent: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """The results of the actions. ``stale`` ones found a newer document in the index.

    ``incomplete`` documents lack fields (``_millrace_absent`` names them).
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    incomplete: int = 0
    refused: int = 0

    @property
    def indexed(self) -> int:
        """Documents written, new or not."""
        return self.inserted + self.updated

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            *(own + added for own, added in zip(astuple(self), astuple(other), strict=True))
        )


def write(
    client: OpenSearch,
    alias: str,
    actions: Iterable[Action],
    *,
    bulk_bytes: int,
    patience: Patience = PATIENT,
    refusals: "RefusalHandler | None" = None,
) -> Counts:
    """Send the actions in requests of about bulk_bytes.

    An index is written through an alias, never under its own name. ``refusals`` gets refused
    documents; without it, raise SinkError.
    """
    requests = _BulkRequests(client, alias, patience, refusals or RefusalHandler(None))
    return sum(map(requests.send, _batches(actions, bulk_bytes)), Counts())


class RefusalHandler:
    """Makes refused documents dead letters, or raises an error if the user wants that.

    ``refused_versions`` are the versions of the documents with a dead letter. Once a document is
    written at that version or a newer one, its dead letter is removed. Unless it ``is_final``,
    refused documents are only counted, as newer ones follow.
    """

    def __init__(
        self,
        dead_letters: DocumentDeadLetters | None,
        refused_versions: Mapping[str, int] = MappingProxyType({}),
        *,
        is_final: bool = True,
    ) -> None:
        self.is_final = is_final
        self._dead_letters = dead_letters
        self._refused_versions = refused_versions
        self._made = 0

    def handle(self, refused: Sequence[tuple[bytes, dict[str, Any]]], where: str) -> int:
        """Make dead letters of lines and the server's answers. Return their number."""
        if not refused or not self.is_final:
            return len(refused)
        self._made += len(refused)
        if self._dead_letters is None or self._made > MADE_MAX:
            raise _refusal([result for _, result in refused], where)
        self._dead_letters.write(
            RefusedDocument(
                result["_id"],
                int(json.loads(head)["index"]["version"]),
                source.decode().rstrip("\n"),
                _error(result)[1] or str(result["status"]),
            )
            for line, result in refused
            for head, _, source in [line.partition(b"\n")]
        )
        return len(refused)

    def settle(self, written: Sequence[bytes]) -> None:
        """Remove the dead letters about documents that were written, by their lines."""
        if self._dead_letters is None or not self._refused_versions:
            return
        heads = (next(iter(json.loads(line.partition(b"\n")[0]).values())) for line in written)
        self._dead_letters.remove([
            head["_id"]
            for head in heads
            if head["version"] >= self._refused_versions.get(head["_id"], _NEVER)
        ])  # fmt: skip


def _batches(actions: Iterable[Action], bulk_bytes: int) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for action in actions:
        line = _line(action)
        if lines and (size + len(line) > bulk_bytes or len(lines) == ACTIONS_MAX):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _line(action: Action) -> bytes:
    verb = "delete" if action.source is None else "index"
    head = (
        f'{{"{verb}":{{"_id":{json.dumps(action.id)},"version":{action.version},'
        '"version_type":"external_gte"}}\n'
    )
    return head.encode() + (b"" if action.source is None else action.source + b"\n")


class _BulkRequests:
    """Requests to one index."""

    def __init__(
        self, client: OpenSearch, alias: str, patience: Patience, refusals: RefusalHandler
    ) -> None:
        self._client = client
        self._alias = alias
        self._patience = patience
        self._refusals = refusals
        self._where = f"index {alias}"

    def send(self, lines: Sequence[bytes]) -> Counts:
        """Send one request, and again for what the server was too busy for."""
        counts = Counts()
        backoff = Backoff(self._patience)
        while True:
            try:
                answer = self._client.bulk(
                    index=self._alias,
                    body=b"".join(lines),
                    # Without this, the server would create a deleted index again.
                    params={"filter_path": _ANSWER_FIELDS, "require_alias": "true"},
                )
            except OpenSearchException as failure:
                if is_too_large(failure) and len(lines) > 1:
                    half = len(lines) // 2
                    return counts + self.send(lines[:half]) + self.send(lines[half:])
                if is_too_large(failure) and not self._refusals.is_final:
                    return counts + Counts(refused=1)
                if not is_transient(failure) or not backoff.wait():
                    raise explain(failure, self._where) from None
                continue
            done, lines = self._settle(lines, answer["items"])
            counts += done
            if not lines:
                return counts
            if not backoff.wait():
                raise SinkUnreachableError(
                    f"the search server was too busy to accept {len(lines)} documents",
                    where=self._where,
                    remedy="check its load and its disk; the next run continues",
                )

    def _settle(
        self, lines: Sequence[bytes], items: Sequence[dict[str, Any]]
    ) -> tuple[Counts, list[bytes]]:
        """Return what the server did, and the lines that it was too busy for."""
        results = Counter[str]()
        busy: list[bytes] = []
        refused: list[tuple[bytes, dict[str, Any]]] = []
        written: list[bytes] = []
        for line, item in zip(lines, items, strict=True):
            (result,) = item.values()
            status = result["status"]
            if status == HTTPStatus.CONFLICT:
                results["stale"] += 1
                written.append(line)
            elif "error" not in result:  # deleting a missing document is a 404 without an error
                results[result["result"]] += 1
                written.append(line)
            elif is_busy(status) and not is_blocked(*_error(result)):
                busy.append(line)
            else:
                refused.append((line, result))
        others = [result for _, result in refused if result["status"] != HTTPStatus.BAD_REQUEST]
        if others:
            raise _refusal(others, self._where)
        refused_count = self._refusals.handle(refused, self._where)
        self._refusals.settle(written)
        return (
            Counts(
                inserted=results["created"],
                updated=results["updated"],
                deleted=results["deleted"],
                stale=results["stale"],
                refused=refused_count,
            ),
            busy,
        )


def _error(result: dict[str, Any]) -> tuple[str, str]:
    """Return an item's kind of error, and the reason with its causes, outermost first."""
    error = result.get("error") or {}
    kind, reasons = str(error.get("type", "")), []
    while isinstance(error, dict) and error.get("reason"):
        reasons.append(str(error["reason"]))
        error = error.get("caused_by")
    return kind, ": ".join(reasons)


def _refusal(refused: list[dict[str, Any]], where: str) -> SinkError:
    for result in refused:
        kind, reason = _error(result)
        if is_blocked(kind, reason):
            return blocked(reason, where)
    shown = [
        on_one_line(f"{result['_id']}: {_error(result)[1]}") for result in refused[:_REFUSALS_SHOWN]
    ]
    more = len(refused) - len(shown)
    return SinkError(
        Lines(
            "\n  ".join(
                [
                    f"the search server refused {len(refused)} document(s):",
                    *shown,
                    *([f"and {more} more"] if more else []),
                ]
            )
        ),
        where=where,
        remedy="correct the reason; nothing of this run counts as applied, and the next run"
        " repeats it",
    )
