"""An index → its documents as they were at one moment (a point in time), page by page.

Pages have Lucene's own order within a shard, so that the server sorts nothing and keeps only its
place: each slice is one shard.
https://docs.opensearch.org/latest/search-plugins/searching-data/point-in-time/
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from opensearchpy import NotFoundError, OpenSearch, OpenSearchException, TransportError

from cdc.errors import MillraceError, SinkError
from sinks.search.client import insist

KEEP: Final = "5m"
"""How long the server keeps an unused point in time."""
_ASK_S: Final = 60.0
_PAGE_BYTES: Final = 4 << 20
"""A page's approximate size in the server's storage. Texts take more."""
_PAGE_MAX: Final = 2_000
_NOT_THERE: Final = frozenset({
    HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED
})  # fmt: skip
"""The answers of a server without points in time."""
Hit = dict[str, Any]
"""A document as the server has it: ``_id``, ``_version`` and ``_source``."""


class PointInTime(NamedTuple):
    """An index at a moment. A request gets ``page`` documents of one of the ``shards``."""

    name: str
    id: str
    shards: int
    documents: int
    page: int


def open_point_in_time(client: OpenSearch, index: str) -> PointInTime:
    """Return the index as searches see it now. Raise SinkError if the server doesn't support this.

    It isn't refreshed: searches would see half of an unfinished run.
    """
    where = f"index {index}"

    def send() -> str | None:
        try:
            return str(client.create_pit(index=index, params={"keep_alive": KEEP})["pit_id"])
        except TransportError as failure:
            if failure.status_code not in _NOT_THERE:
                raise
            return None

    settings = insist(lambda: client.indices.get_settings(index=index), where)
    stats = insist(lambda: client.indices.stats(index=index, metric="docs,store"), where)
    primaries = stats["indices"][index]["primaries"]
    count = int(primaries["docs"]["count"])
    page = _PAGE_BYTES * max(1, count) // max(1, int(primaries["store"]["size_in_bytes"]))
    shards = int(settings[index]["settings"]["index"]["number_of_shards"])
    opened = insist(send, where)
    if opened is None:
        raise SinkError(
            "the search server doesn't support points in time",
            where=where,
            remedy="upgrade it: OpenSearch supports them from 2.4 on",
        )
    return PointInTime(index, opened, shards, count, max(1, min(_PAGE_MAX, page)))


def open_alias(client: OpenSearch, alias: str) -> PointInTime | str:
    """Return the index that searches see by an alias, or why none can be compared."""

    def behind() -> list[str]:
        try:
            return list(client.indices.get_alias(name=alias))
        except NotFoundError:
            return []

    indexes = insist(behind, f"index {alias}")
    if not indexes:
        return "its index doesn't exist yet, or is being loaded"
    if len(indexes) > 1:
        return f"{alias} points to several indexes: {', '.join(sorted(indexes))}"
    try:
        return open_point_in_time(client, indexes[0])
    except MillraceError as error:
        return str(error)


@contextmanager
def kept(client: OpenSearch) -> Iterator[list[PointInTime]]:
    """Yield a list. Keep its points in time open while the context lasts, and then close them."""
    points = list[PointInTime]()
    ended = threading.Event()
    keeping = threading.Thread(target=_keep, args=(client, points, ended), daemon=True)
    keeping.start()
    try:
        yield points
    finally:
        ended.set()
        keeping.join()
        closed(client, points)


def closed(client: OpenSearch, points: Sequence[PointInTime]) -> None:
    """Close points in time. If this fails, the server removes them later."""
    if points:
        with suppress(OpenSearchException):
            client.delete_pit(body={"pit_id": [point.id for point in points]})


def pages(client: OpenSearch, point: PointInTime, shard: int) -> Iterator[list[Hit]]:
    """Yield a shard's documents. Raise SinkError if some are missing."""
    where = f"index {point.name}"
    body: dict[str, Any] = {
        "pit": {"id": point.id, "keep_alive": KEEP},
        "size": point.page,
        "sort": ["_doc"],
        "version": True,
        "track_total_hits": True,
    }
    if point.shards > 1:
        body["slice"] = {"id": shard, "max": point.shards}
    params = {"allow_partial_search_results": "false"}
    came, total = 0, None
    while True:
        answer = insist(lambda: client.search(body=body, params=params), where)
        hits: list[Hit] = answer["hits"]["hits"]
        if total is None:
            total = answer["hits"]["total"]["value"]
            body["track_total_hits"] = False
        if not hits:
            break
        yield hits
        came += len(hits)
        body["search_after"] = hits[-1]["sort"]
    if came != total:
        raise SinkError(f"only {came:,} of {total:,} documents could be read", where=where)


def _keep(client: OpenSearch, points: Sequence[PointInTime], ended: threading.Event) -> None:
    """Keep the points in time alive. If they are gone, the next read reports it."""
    while not ended.wait(_ASK_S):
        for point in [*points]:
            body = {"pit": {"id": point.id, "keep_alive": KEEP}, "size": 0}
            with suppress(OpenSearchException, MillraceError):
                client.search(body=body)
