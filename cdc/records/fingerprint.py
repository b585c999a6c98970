"""pg_catalog → everything that rows and their text depend on and the stream lacks, in the state.

The comparison of two fingerprints of a table shows what has changed (cdc/tables/doubts.py). If the
same content with another ``xmin`` means a change and its reversal, the catalog row's ``xmin`` is
also kept. All of them have 32 bits, as text.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

GONE_BOUNDS_MAX: Final = 4096
"""How many bounds of dropped partitions a state record keeps, 20 bytes each."""
LEVELS_CHARS_MAX: Final = 200_000
"""Maximum characters of partitions' bounds in a state record, in total."""
LEAF_CHARS_MAX: Final = 20_000
"""The same for one leaf: an event must have room for twice as many."""


class PartitionLevel(NamedTuple):
    """A partition between the captured table and a leaf, in the table above it.

    ``columns`` are the partition key's, by their numbers in the captured table. They are empty
    unless the bound is a list or range of columns in their usual order. ``bound`` is its SQL from
    pg_get_expr.
    """

    oid: int
    columns: tuple[int, ...]
    bound: str


class EndedPartition(NamedTuple):
    """A dropped partition whose rows an event must end, by its bounds, level by level.

    ``leaves`` are the digests of the bounds of its leaves (``LeafFingerprint.bound``).
    """

    levels: tuple[PartitionLevel, ...]
    leaves: tuple[str, ...]


class DoubtfulLeaf(NamedTuple):
    """A partition whose rows must be read again, by its OID.

    ``attached`` is that of its fingerprint: it identifies the partition while its bounds stay the
    same. ``levels`` are these bounds, from the captured table down. Without them a read can't
    replace it alone.
    """

    oid: int
    attached: str = ""
    levels: tuple[PartitionLevel, ...] = ()


class LeafFingerprint(NamedTuple):
    """A leaf with rows: a plain table itself, or a partition. Includes foreign tables (``kind`` f).

    ``file`` is its relfilenode, ``toast`` the OID of its TOAST table (0: none), ``persistence``
    pg_class.relpersistence: p(ermanent) or u(nlogged). ``attached`` has the xmins of the
    pg_inherits rows from the captured table down to it. ``bound`` is a digest of the bounds on that
    way. Both are empty for the captured table itself. ``levels`` are those bounds, from the
    captured table down, if partition.drop.policy needs them; they aren't compared. If there is no
    room for them, ``cut`` is their number of characters.
    """

    oid: int
    kind: str
    file: int
    toast: int
    persistence: str
    attached: str = ""
    bound: str = ""
    levels: tuple[PartitionLevel, ...] = ()
    cut: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether its rows are read and streamed."""
        return self.kind != "f"


class LabelFingerprint(NamedTuple):
    """A label of an enum. ``order`` is its pg_enum.enumsortorder."""

    oid: int
    text: str
    order: float
    xmin: str


class AttributeFingerprint(NamedTuple):
    """An attribute of a composite type. For a table's row type the ``xmin`` is empty.

    GRANT and SET STATISTICS change the ``xmin`` of a table's attributes.
    """

    number: int
    name: str
    type_oid: int
    modifier: int
    dropped: bool
    xmin: str


class TypeFingerprint(BaseModel):
    """An enum's labels, or a composite type's attributes. ``name`` is for people."""

    model_config = ConfigDict(frozen=True)

    name: str
    labels: tuple[LabelFingerprint, ...] = ()
    attributes: tuple[AttributeFingerprint, ...] = ()


class PublicationFingerprint(BaseModel):
    """How the publication publishes a table. ``oid`` is 0 without a publication.

    ``options`` has a letter for each that is on: i(nsert), u(pdate), d(elete), t(runcate), via
    r(oot), g(enerated columns), a(ll tables). ``entries`` is a digest of the entries for the table,
    its partition ancestors, its members or their schemas, and of the table's attachment to those
    ancestors. ``entry_xmins`` is a digest of those rows' xmins.
    """

    model_config = ConfigDict(frozen=True)

    oid: int = 0
    xmin: str = ""
    options: str = ""
    entries: str = ""
    entry_xmins: str = ""


class TableFingerprint(BaseModel):
    """The fingerprint of a captured table.

    ``columns`` is a digest of number, name, type and modifier of its columns, and of whether they
    are generated. ``generated`` has a digest of the expression of each published generated column,
    by its number. ``identity`` is pg_class.relreplident with the column numbers of the primary key
    and of the replica identity's index, and those of partitions that differ. ``key_constraint`` is
    the OID of the primary key's pg_constraint (0: none). ``types`` are the enums and composite
    types, by OID, that its columns use, directly or through others. ``key_types`` are those of
    columns that identify a row: all, without a key. ``gone_bounds`` are the bounds of dropped
    partitions whose rows the log keeps (``carrying``): the newest, and one more than
    ``GONE_BOUNDS_MAX`` if there were others. ``seen`` is the text of the pg_current_snapshot()
    under which the catalog was read.
    """

    model_config = ConfigDict(frozen=True)

    columns: str
    generated: dict[int, str] = {}
    identity: str
    key_constraint: int = 0
    types: dict[int, TypeFingerprint] = {}
    key_types: tuple[int, ...] = ()
    publication: PublicationFingerprint = PublicationFingerprint()
    leaves: tuple[LeafFingerprint, ...] = ()
    gone_bounds: tuple[str, ...] = ()
    seen: str

    @property
    def key(self) -> str:
        """Return the numbers of the columns that distinguish rows. Empty: there are none."""
        primary, by_index = [*self.identity.split(" "), "", ""][1:3]
        return primary or by_index

    @property
    def truncates(self) -> bool:
        """Whether the publication publishes TRUNCATE."""
        return "t" in self.publication.options

    @property
    def unlogged(self) -> bool:
        """Whether its rows change without WAL."""
        return any(leaf.persistence == "u" and leaf.has_rows for leaf in self.leaves)

    def carrying(self, before: "TableFingerprint") -> "TableFingerprint":
        """Add the bounds gone since ``before``: for a check, or a read that only adds.

        It also keeps the bounds of partitions that were read.
        """
        bounds = {leaf.bound for leaf in self.leaves if leaf.has_rows}
        earlier = {(leaf.oid, leaf.attached, leaf.bound): leaf for leaf in before.leaves}
        leaves = list[LeafFingerprint]()
        for leaf in self.leaves:
            was = earlier.get((leaf.oid, leaf.attached, leaf.bound), leaf)
            leaves.append(leaf._replace(levels=was.levels, cut=was.cut))
        were = (leaf.bound for leaf in before.leaves if leaf.attached and leaf.has_rows)
        gone = [each for each in dict.fromkeys((*before.gone_bounds, *were)) if each not in bounds]
        gone = gone[-GONE_BOUNDS_MAX - 1 :]
        return self.model_copy(update={"gone_bounds": tuple(gone), "leaves": tuple(leaves)})

    def with_levels(self, levels: Mapping[int, tuple[PartitionLevel, ...]]) -> "TableFingerprint":
        """Return this fingerprint with the bounds of leaves, by their OIDs.

        Bounds of others stay cut.
        """
        room, leaves = self._room, list[LeafFingerprint]()
        for leaf in self.leaves:
            if not leaf.levels and (own := levels.get(leaf.oid)):
                chars = _chars(own)
                fits = chars <= min(room, LEAF_CHARS_MAX)
                room -= chars if fits else 0
                leaves.append(leaf._replace(levels=own if fits else (), cut=0 if fits else chars))
            else:
                leaves.append(leaf)
        return self.model_copy(update={"leaves": tuple(leaves)})

    @property
    def without_levels(self) -> list[int]:
        """Return partitions (OIDs) with unknown bounds, and cut ones if they fit now."""
        room = min(self._room, LEAF_CHARS_MAX)
        unread = (leaf for leaf in self.leaves if leaf.attached and not leaf.levels)
        return [leaf.oid for leaf in unread if leaf.cut <= room]

    @property
    def _room(self) -> int:
        """Return how many characters of bounds there is room for."""
        return LEVELS_CHARS_MAX - sum(_chars(leaf.levels) for leaf in self.leaves)

    def without_bounds(self, ended: Iterable[str]) -> "TableFingerprint":
        """Return this fingerprint without the ``ended`` bounds of dropped partitions."""
        ended = set(ended)
        left = tuple(bound for bound in self.gone_bounds if bound not in ended)
        return self.model_copy(update={"gone_bounds": left})


def within_limit(leaves: Iterable[DoubtfulLeaf]) -> tuple[DoubtfulLeaf, ...]:
    """Return these leaves, without their bounds if those are too long for a state record."""
    leaves = tuple(leaves)
    if sum(_chars(leaf.levels) for leaf in leaves) <= LEAF_CHARS_MAX:
        return leaves
    return tuple(leaf._replace(levels=()) for leaf in leaves)


def _chars(levels: Iterable[PartitionLevel]) -> int:
    return sum(len(level.bound) for level in levels)
