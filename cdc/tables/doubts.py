"""Two fingerprints of a table → the differences that the stream doesn't show.

A re-read *replaces* if a row or a key can have gone: rows that the source doesn't have disappear.
It only *adds* if values have changed, and rows and keys are the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdc.records.fingerprint import (
    GONE_BOUNDS_MAX,
    LeafFingerprint,
    PublicationFingerprint,
    TableFingerprint,
    TypeFingerprint,
)


class Cause(NamedTuple):
    """Why a table's derived rows may be wrong. ``reason`` is for people.

    ``replaces``: rows or keys can have gone. ``leaves`` are the OIDs of the affected partitions,
    with unchanged bounds. Empty: the whole table. ``misses``: the log may lack changes, and a read
    shows only their result. ``locks``: the DDL took an ACCESS EXCLUSIVE lock on everything that it
    affects. So earlier writers have ended, and later ones are decoded by the new catalog. Without
    the lock, open transactions may still write, or be decoded, in the old form.
    """

    reason: str
    replaces: bool
    leaves: tuple[int, ...] = ()
    misses: bool = True
    locks: bool = False

    @property
    def replaces_all(self) -> bool:
        """Whether rows of the whole table can have gone."""
        return self.replaces and not self.leaves


@dataclass(frozen=True, slots=True)
class Differences:
    """The changes from one fingerprint to another.

    ``unproven`` are leaves with another file, by OID, each with its cause. The cause doesn't count
    if a row of the leaf is older than ``seen`` of the earlier fingerprint (``has_old_row``).
    ``altered``: the table has other columns or another identity, so its schema has a new version.
    ``attached`` are the OIDs of new members with rows. ``gone`` counts the members that were
    detached or dropped.
    """

    causes: tuple[Cause, ...] = ()
    unproven: Mapping[int, Cause] = field(default_factory=dict)
    altered: bool = False
    attached: tuple[int, ...] = ()
    gone: int = 0

    @property
    def leaves(self) -> tuple[int, ...]:
        """The partitions whose rows may be wrong, or missing. Empty: all of the table's."""
        if not all(cause.leaves for cause in self.causes):
            return ()
        named = (oid for cause in self.causes for oid in cause.leaves)
        return tuple(dict.fromkeys((*named, *self.attached)))


_REWRITTEN: Final = "the table was rewritten by an ALTER TABLE (SET LOGGED, ALTER COLUMN … USING …)"
_PARTITION_REWRITTEN: Final = (
    "a partition was rewritten by an ALTER TABLE (SET LOGGED, ALTER COLUMN … USING …)"
)
_UNLOGGED: Final = "is unlogged: its changes aren't in the WAL"
_WAS_UNLOGGED: Final = "was unlogged: changes from that time aren't in the WAL"
_TRUNCATED: Final = "the table has a new file without old rows: a TRUNCATE that isn't published"
_PARTITION_TRUNCATED: Final = (
    "a partition has a new file without old rows: a TRUNCATE that isn't published"
)
_UNKNOWN_FILE: Final = "the table has a new file without old rows: rewritten or truncated"
_PARTITION_UNKNOWN_FILE: Final = (
    "a partition has a new file without old rows: rewritten or truncated"
)
_REATTACHED: Final = "a partition was detached and attached again"
_EXCHANGED: Final = "a partition was exchanged"
_NEW_FILE: Final = "a new partition was truncated or rewritten, before it was attached or since"
OTHER_KEY: Final = "the key has other columns"
RENAMED: Final = Cause("it was gone, or had another name, for a while", replaces=True, locks=True)
LEFT: Final = Cause("it left the publication or the lists, and came back", replaces=True)


def made_again(columns: Collection[str]) -> Cause:
    """Return the cause for columns that were dropped and made again.

    The stream has everything written to them.
    """
    reason = f"columns were dropped and made again: {', '.join(columns)}"
    return Cause(reason, replaces=False, misses=False, locks=True)


def first(now: TableFingerprint) -> Differences:
    """Return why a table is doubtful that has no earlier fingerprint, or was read right before."""
    leaves = (leaf for leaf in now.leaves if leaf.has_rows)
    return Differences(
        causes=tuple(joined([cause for leaf in leaves for cause in _unlogged(leaf)]))
    )


def compare(
    before: TableFingerprint, now: TableFingerprint, *, is_rekeyed: bool = False
) -> Differences:
    """Return the differences. Owner, grants, statistics, indexes and the like never count.

    ``is_rekeyed``: message.key.columns names the key, so any type may be part of it.
    """
    earlier = {leaf.oid: leaf for leaf in before.leaves}
    later = {leaf.oid: leaf for leaf in now.leaves}
    kept = [(earlier[oid], leaf) for oid, leaf in later.items() if oid in earlier]
    truncates = before.truncates and now.truncates
    causes, unproven = list[Cause](), dict[int, Cause]()
    for was, leaf in kept:
        causes += _leaf_causes(was, leaf)
        if not _is_replaced(was, leaf):
            unproven.update(_unproven(was, leaf, truncates=truncates))
    added = [leaf for oid, leaf in later.items() if oid not in earlier and leaf.has_rows]
    gone = [leaf for oid, leaf in earlier.items() if oid not in later and leaf.has_rows]
    bounds = {*before.gone_bounds, *(leaf.bound for leaf in gone)}
    for leaf in added:
        causes += _attached_causes(leaf, bounds)
    return Differences(
        causes=(
            *_publication_causes(before.publication, now.publication),
            *joined(causes),
            *_type_causes(before, now, is_rekeyed=is_rekeyed),
            *_generated_causes(before, now),
            *_key_causes(before, now, is_rekeyed=is_rekeyed),
        ),
        unproven=unproven,
        altered=(before.columns, before.identity) != (now.columns, now.identity),
        attached=tuple(leaf.oid for leaf in added),
        gone=len(gone),
    )


def _publication_causes(
    before: PublicationFingerprint, now: PublicationFingerprint
) -> Iterator[Cause]:
    if not now.oid or before.oid != now.oid:
        was = "dropped and created again" if now.oid and before.oid else "created"
        if before != now:
            yield Cause(f"the publication was {was if now.oid else 'dropped'}", replaces=True)
    elif before.options != now.options:
        yield Cause("the publication's options were changed", replaces=True)
    elif before.entries != now.entries:
        yield Cause(
            "how the publication lists the table was changed (row filter, column list, taken out"
            " and in)",
            replaces=True,
        )
    elif before.xmin != now.xmin:
        yield Cause(
            "the publication's options were changed and changed back, or its owner was",
            replaces=True,
        )
    elif before.entry_xmins != now.entry_xmins:
        yield Cause(
            "how the publication lists the table was changed and changed back", replaces=True
        )


def _of_leaf(reason: str, leaves: tuple[int, ...] = ()) -> Cause:
    return Cause(reason, replaces=True, leaves=leaves, locks=True)


def _leaf_causes(was: LeafFingerprint, leaf: LeafFingerprint) -> Iterator[Cause]:
    """Yield the certain causes of a member that existed before."""
    leaves = (leaf.oid,) if leaf.attached else ()
    subject = "a partition" if leaf.attached else "the table"
    if (was.attached, was.bound) != (leaf.attached, leaf.bound):
        yield _of_leaf(_REATTACHED, leaves=leaves if was.bound == leaf.bound else ())
    if was.persistence != leaf.persistence:
        state = _UNLOGGED if leaf.persistence == "u" else _WAS_UNLOGGED
        yield _of_leaf(f"{subject} {state}", leaves=leaves)
    elif was.file != leaf.file and was.toast and leaf.toast and was.toast != leaf.toast:
        reason = _PARTITION_REWRITTEN if leaf.attached else _REWRITTEN
        yield _of_leaf(reason, leaves=leaves)


def _unlogged(leaf: LeafFingerprint) -> Iterator[Cause]:
    if leaf.persistence == "u":
        leaves = (leaf.oid,) if leaf.attached else ()
        subject = "a partition" if leaf.attached else "the table"
        yield _of_leaf(f"{subject} {_UNLOGGED}", leaves=leaves)


def _attached_causes(leaf: LeafFingerprint, gone_bounds: Collection[str]) -> Iterator[Cause]:
    """Yield the causes for which adding the rows of a new member isn't enough.

    A new table's file has the table's OID as its number. If it has another one, a TRUNCATE can have
    removed rows that were inserted through the stream since the last check.
    """
    if leaf.bound in gone_bounds or len(gone_bounds) > GONE_BOUNDS_MAX:
        yield _of_leaf(_EXCHANGED, leaves=(leaf.oid,))
    if leaf.file != leaf.oid:
        yield _of_leaf(_NEW_FILE, leaves=(leaf.oid,))
    yield from _unlogged(leaf)


def _is_replaced(was: LeafFingerprint, leaf: LeafFingerprint) -> bool:
    return any(cause.replaces for cause in _leaf_causes(was, leaf))


def _unproven(
    was: LeafFingerprint, leaf: LeafFingerprint, *, truncates: bool
) -> Iterator[tuple[int, Cause]]:
    """Yield causes that only an old row can disprove, after VACUUM FULL, CLUSTER, SET TABLESPACE.

    With the same TOAST table, the only other possibility is TRUNCATE. The TRUNCATE of a table is in
    the stream if the publication has it. That of a partition that is published via its root never
    is.
    """
    if was.file == leaf.file:
        return
    if was.toast and leaf.toast:
        if leaf.attached:
            yield leaf.oid, _of_leaf(_PARTITION_TRUNCATED, leaves=(leaf.oid,))
        elif not truncates:
            yield leaf.oid, _of_leaf(_TRUNCATED)
    elif leaf.attached:
        yield leaf.oid, _of_leaf(_PARTITION_UNKNOWN_FILE, leaves=(leaf.oid,))
    else:
        yield leaf.oid, _of_leaf(_UNKNOWN_FILE)


def joined(causes: Iterable[Cause]) -> Iterator[Cause]:
    """Yield one cause for all partitions that have the same one."""
    leaves: dict[tuple[Cause, bool], tuple[int, ...]] = {}
    for cause in causes:
        kind = cause._replace(leaves=()), bool(cause.leaves)
        leaves[kind] = (*leaves.get(kind, ()), *cause.leaves)
    for (alike, _), oids in leaves.items():
        yield alike._replace(leaves=oids)


def _type_causes(
    before: TableFingerprint, now: TableFingerprint, *, is_rekeyed: bool
) -> Iterator[Cause]:
    """Yield the causes of types that both fingerprints use.

    A type that only one of them uses belongs to a column, or attribute, that differs.
    """
    for oid in sorted(before.types.keys() & now.types.keys()):
        replaces = is_rekeyed or oid in before.key_types or oid in now.key_types
        was, is_now = before.types[oid], now.types[oid]
        reason = _label_reason(was, is_now) or _attribute_reason(was, is_now)
        if reason:
            yield Cause(reason, replaces)


def _label_reason(was: TypeFingerprint, now: TypeFingerprint) -> str:
    """Return the reason; empty: none. ADD VALUE … BEFORE may give all labels new sort orders."""
    labels = {label.oid: label for label in now.labels}
    pairs = [(label, labels.get(label.oid)) for label in was.labels]
    if any(later is None or earlier.text != later.text for earlier, later in pairs):
        return f"labels of enum {now.name} were renamed"
    if any(
        later and earlier.order == later.order and earlier.xmin != later.xmin
        for earlier, later in pairs
    ):
        return f"labels of enum {now.name} were renamed and renamed back"
    return ""


def _attribute_reason(was: TypeFingerprint, now: TypeFingerprint) -> str:
    if was.attributes == now.attributes:
        return ""
    contents = [[attribute[:-1] for attribute in each.attributes] for each in (was, now)]
    if contents[0] == contents[1]:
        return f"attributes of composite type {now.name} were changed and changed back"
    return f"attributes of composite type {now.name} were changed"


def _key_causes(
    before: TableFingerprint, now: TableFingerprint, *, is_rekeyed: bool
) -> Iterator[Cause]:
    """Yield the causes of another key.

    With another key, the log has the rows under both: no change removes rows under the old one. The
    same applies if there was no key.

    While there was none, rows may have shared a key. Nothing shows this if old rows are whole.
    ALTER COLUMN … TYPE makes the key's constraint again, too.
    """
    if before.key != now.key and not is_rekeyed:
        yield Cause(OTHER_KEY, replaces=True, misses=False, locks=True)
    is_whole = "f" in {before.identity[:1], now.identity[:1]}
    is_other = before.key_constraint not in {0, now.key_constraint}
    if is_whole and is_other and now.key_constraint:
        yield Cause("the primary key was dropped and made again", replaces=True)


def _generated_causes(before: TableFingerprint, now: TableFingerprint) -> Iterator[Cause]:
    """Yield the cause of a generated column whose expression has changed.

    Only columns in both fingerprints count: a new, or newly published, one is another difference.
    """
    kept = before.generated.keys() & now.generated.keys()
    if any(before.generated[number] != now.generated[number] for number in kept):
        reason = "the expression of a generated column was changed"
        yield Cause(reason, replaces=False, locks=True)
