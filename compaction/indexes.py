"""Search indexes → fewer deleted documents in their segments, if a merge pays.

An update leaves the old document in its segment, marked as deleted, until a merge drops it. The
server merges automatically, but it lets up to a third of an index consist of such documents, and
rarely touches large segments. A merge rewrites whole segments. So it runs only if the share of
deleted documents pays, and only to expunge those. One large segment, from ``max_num_segments=1``,
would never be merged again while its table changes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import SinkError
from cdc.records.schema import TableName
from cdc.settings import SearchSettings
from sinks.search.client import check, connect, insist
from sinks.search.documents import aliases

DELETED_SHARE_MIN: Final = 0.1
"""With less, a merge reads and writes more than it frees."""
DELETED_MIN: Final = 10_000
"""The server merges a small index soon enough."""
_MERGE_TIMEOUT_S: Final = 3_600


@dataclass(frozen=True, slots=True)
class IndexSize:
    """The size of an index: documents, those marked as deleted, and bytes on disk."""

    documents: int
    deleted: int
    size_bytes: int

    @property
    def deleted_share(self) -> float:
        """Return the deleted documents' share of all in the segments."""
        return self.deleted / max(self.documents + self.deleted, 1)


@dataclass(frozen=True, slots=True)
class Merge:
    """One index before and after a merge (None: it wasn't merged), and whether that pays."""

    index: str
    before: IndexSize
    after: IndexSize | None
    pays: bool

    def __str__(self) -> str:
        held = f"{self.before.documents:,} documents, {self.before.deleted:,} deleted ones"
        if not self.pays:
            return f"{self.index}: {held}: left as it is"
        if self.after is None:
            return f"{self.index}: {held}: worth merging"
        freed = (self.before.size_bytes - self.after.size_bytes) / (1 << 20)
        return f"{self.index}: {held} before, {self.after.deleted:,} after, {freed:,.1f} MiB freed"


def compact(
    settings: SearchSettings,
    tables: Iterable[TableName],
    *,
    deleted_share_min: float = DELETED_SHARE_MIN,
    deleted_min: int = DELETED_MIN,
    dry_run: bool = False,
) -> Iterator[Merge]:
    """Expunge deleted documents from indexes with many of them.

    Covers the indexes of these tables, and of joined documents. A dry run only reports.
    """
    client = connect(settings)
    check(client, settings)
    for alias in aliases(settings, tables).by_name.values():
        where = f"index {alias}"
        before = _size(client, alias)
        if before is None:
            continue
        after: IndexSize | None = None
        pays = before.deleted >= deleted_min and before.deleted_share >= deleted_share_min
        if pays and not dry_run:
            insist(lambda alias=alias: _merge(client, alias), where)  # type: ignore[misc]
            after = _size(client, alias)
            if after is None:
                raise SinkError("the index was deleted while it was merged", where=where)
        yield Merge(alias, before, after, pays)


def _merge(client: Any, alias: str) -> None:
    # For a replica to catch up, the server keeps deletions since the last commit, and those of
    # about the last 30 seconds (the retention lease, which it renews automatically).
    client.indices.flush(index=alias)
    client.indices.forcemerge(
        index=alias,
        params={"only_expunge_deletes": "true", "request_timeout": _MERGE_TIMEOUT_S},
    )
    # A merged segment's files stay until the next refresh releases them.
    client.indices.refresh(index=alias)


def _size(client: Any, alias: str) -> IndexSize | None:
    """Return the figures of an index's primary shards. None: it doesn't exist."""
    answer = insist(
        lambda: (
            client.indices.stats(
                index=alias,
                metric="docs,store",
                params={"ignore_unavailable": "true", "allow_no_indices": "true"},
            )
            if client.indices.exists_alias(name=alias)
            else None
        ),
        f"index {alias}",
    )
    if answer is None:
        return None
    primaries = answer["_all"]["primaries"]
    return IndexSize(
        documents=primaries["docs"]["count"],
        deleted=primaries["docs"]["deleted"],
        size_bytes=primaries["store"]["size_in_bytes"],
    )
