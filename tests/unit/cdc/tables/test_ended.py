"""Dropped partitions → the whole ones, and those whose rows an event can name."""

from typing import Any

import pytest

from cdc.events.fields import plan
from cdc.events.rules import EventRules
from cdc.records.bounds import Bound, RangeEdge
from cdc.records.fingerprint import (
    DoubtfulLeaf,
    EndedPartition,
    LeafFingerprint,
    PartitionLevel,
    TableFingerprint,
)
from cdc.records.schema import TableSchema
from cdc.records.state import Doubt
from cdc.tables.ended import gone_partitions, json_bounds
from tests.fixtures.made_changes import table
from tests.fixtures.made_tables import STATE, tables

DAY = PartitionLevel(10, (1,), "FOR VALUES FROM ('2024-01-01') TO ('2024-01-02')")
NEXT = PartitionLevel(20, (1,), "FOR VALUES FROM ('2024-01-02') TO ('2024-01-03')")


def leaf(oid: int, *levels: PartitionLevel, kind: str = "r") -> LeafFingerprint:
    return LeafFingerprint(oid, kind, oid, 0, "p", "7", f"b{oid}", levels)


def part(oid: int, above: PartitionLevel, *, hashed: bool = False) -> LeafFingerprint:
    bound = "FOR VALUES WITH (modulus 2, remainder 0)" if hashed else "FOR VALUES IN (1)"
    return leaf(oid, above, PartitionLevel(oid, () if hashed else (2,), bound))


def fingerprint(*leaves: LeafFingerprint) -> TableFingerprint:
    return TableFingerprint(columns="c", identity="d 1 ", leaves=leaves, seen="1:1:")


def test_of_a_tree_that_is_gone_its_root_is() -> None:
    before = fingerprint(
        leaf(1, DAY), part(2, NEXT), part(3, NEXT, hashed=True), part(4, NEXT, hashed=True)
    )
    both = EndedPartition((NEXT,), ("b2", "b3", "b4"))
    assert gone_partitions(before, fingerprint(before.leaves[0])) == [both]
    first = EndedPartition(before.leaves[1].levels, ("b2",))
    assert gone_partitions(before, fingerprint(before.leaves[0], *before.leaves[2:])) == [first]
    assert gone_partitions(before, fingerprint(*before.leaves[1:])) == [
        EndedPartition((DAY,), ("b1",))
    ]
    assert gone_partitions(before, before) == []


def test_a_foreign_partition_had_no_rows_of_ours() -> None:
    assert gone_partitions(fingerprint(leaf(1, DAY, kind="f")), fingerprint()) == []


TYPES = "id int4!, d date!, t timestamp!, z timestamptz!, n numeric(10,2)!, x text!, u uuid!"
TYPES += ", b bool!, w numeric!, r bpchar!, f float8!, v text, s numeric(37,-2)!, q numeric(2,39)!"
TYPES += ", g numeric(3,-2)!"
KEY = "id d t z n x u b w r f s q g"


def numbered(columns: str = TYPES, key: str = KEY) -> TableSchema:
    made = table(columns, key=key)
    columns_numbered = (
        column.model_copy(update={"number": number})
        for number, column in enumerate(made.columns, 1)
    )
    return made.model_copy(update={"columns": tuple(columns_numbered)})


def said(*levels: tuple[tuple[int, ...], str]) -> tuple[Bound, ...] | None:
    schema = numbered()
    made = [PartitionLevel(9, columns, bound) for columns, bound in levels]
    return json_bounds(schema, plan(schema, EventRules()).key, made)


def value(given: str | int) -> RangeEdge:
    return RangeEdge("value", given)


def test_values_are_as_events_have_them() -> None:
    low = RangeEdge("min")
    assert said(
        ((2, 1), "FOR VALUES FROM ('2024-01-01', MINVALUE) TO ('2024-01-02', '-5')"),
        ((3,), "FOR VALUES FROM ('2024-01-01 00:00:00') TO (MAXVALUE)"),
        ((4,), "FOR VALUES FROM ('2024-01-01 00:00:00+00') TO (MAXVALUE)"),
        ((5,), "FOR VALUES FROM ('-1.50') TO (2.00)"),
        ((6,), "FOR VALUES IN ('it''s', NULL)"),
        ((7,), "FOR VALUES IN ('00000000-0000-0000-0000-000000000001')"),
        ((8,), "FOR VALUES IN (true, false)"),
        ((2,), "FOR VALUES FROM ('0001-01-01') TO ('9999-12-31')"),
        ((15,), "FOR VALUES FROM ('-12300') TO ('100')"),
    ) == (
        Bound(columns=("d", "id"), lower=(value(19_723), low), upper=(value(19_724), value(-5))),
        Bound(columns=("t",), lower=(value(1_704_067_200_000_000),), upper=(RangeEdge("max"),)),
        Bound(
            columns=("z",),
            lower=(value("2024-01-01T00:00:00.000000Z"),),
            upper=(RangeEdge("max"),),
        ),
        Bound(columns=("n",), lower=(value("-1.50"),), upper=(value("2.00"),)),
        Bound(columns=("x",), values=("it's", None)),
        Bound(columns=("u",), values=("00000000-0000-0000-0000-000000000001",)),
        Bound(columns=("b",), values=(True, False)),
        Bound(columns=("d",), lower=(value(-719_162),), upper=(value(2_932_896),)),
        Bound(columns=("g",), lower=(value("-12300"),), upper=(value("100"),)),
    )


@pytest.mark.parametrize(
    ("columns", "bound"),
    [
        ((), "FOR VALUES FROM (1) TO (2)"),
        ((1,), "DEFAULT"),
        ((1,), ""),
        ((1,), "FOR VALUES IN ('a')"),
        ((2,), "FOR VALUES FROM ('-infinity') TO ('2024-01-01')"),
        ((5,), "FOR VALUES FROM ('NaN') TO (MAXVALUE)"),
        ((2,), "FOR VALUES FROM ('9999-01-01') TO ('10000-01-01')"),
        ((2,), "FOR VALUES IN ('0001-12-31 BC')"),
        ((3,), "FOR VALUES FROM ('4713-01-01 00:00:00 BC') TO (MAXVALUE)"),
        ((4,), "FOR VALUES FROM (MINVALUE) TO ('10000-01-01 00:00:00+00')"),
        ((13,), "FOR VALUES FROM ('100') TO ('200')"),
        ((14,), "FOR VALUES FROM ('0') TO (MAXVALUE)"),
        ((6,), "FOR VALUES FROM ('a') TO ('b')"),
        ((9,), "FOR VALUES FROM ('1') TO ('2')"),
        ((10,), "FOR VALUES IN ('a')"),
        ((11,), "FOR VALUES FROM ('1') TO ('2')"),
        ((12,), "FOR VALUES IN ('not in the key')"),
        ((99,), "FOR VALUES IN (1)"),
    ],
)
def test_other_bounds_are_not_said(columns: tuple[int, ...], bound: str) -> None:
    assert said((columns, bound)) is None
    assert said(((1,), "FOR VALUES FROM (1) TO (2)"), (columns, bound)) is None


def test_without_levels_nothing_is_said() -> None:
    assert said() is None


def test_bounds_that_are_too_long_for_a_state_are_left_out() -> None:
    long = PartitionLevel(1, (1,), "FOR VALUES IN (" + "1, " * 7_000 + "1)")
    read = fingerprint(leaf(1), leaf(2), leaf(3))
    kept = read.with_levels({1: (DAY,), 2: (long,), 3: (NEXT,)})
    assert [(each.levels, each.cut) for each in kept.leaves] == [
        ((DAY,), 0), ((), len(long.bound)), ((NEXT,), 0)
    ]  # fmt: skip
    assert kept.without_levels == []
    later = fingerprint(leaf(1), leaf(2), leaf(3)._replace(attached="8"), leaf(4))
    carried = later.carrying(kept)
    assert [bool(each.levels) for each in carried.leaves] == [True, False, False, False]
    assert carried.without_levels == [3, 4]
    assert carried.gone_bounds == ()


def test_bounds_that_were_left_out_are_read_again_once_there_is_room() -> None:
    def levels(oid: int) -> tuple[PartitionLevel, ...]:
        return (PartitionLevel(oid, (1,), "FOR VALUES IN (" + "1, " * 6_000 + f"{oid})"),)

    oids = range(1, 14)
    read = fingerprint(*map(leaf, oids)).with_levels({oid: levels(oid) for oid in oids})
    assert [each.oid for each in read.leaves if each.cut] == [12, 13]
    assert read.without_levels == []
    later = fingerprint(*map(leaf, range(2, 14))).carrying(read)
    assert later.without_levels == [12, 13]
    mended = later.with_levels({oid: levels(oid) for oid in later.without_levels})
    assert [each.oid for each in mended.leaves if each.cut] == [13]
    assert mended.without_levels == []


@pytest.mark.parametrize(
    "derived",
    [{}, {"mask": {"v": "hash"}}, {"mask": {"id": "hash"}}, {"types": {"id": "string"}}],
    ids=["as it is", "another column hashed", "hashed", "of another type"],
)
def test_bounds_are_said_of_columns_that_derived_tables_have_as_they_are(
    derived: dict[str, Any],
) -> None:
    made = tables(
        schemas=[numbered("id int4!, v text", "id").model_copy(update={"table": "t"})],
        lakehouse={
            "path": "/lake",
            "salt": "s",
            "tables": [{"source": "public.t", "kind": "current", **derived}],
        },
    )
    level = PartitionLevel(10, (1,), "FOR VALUES FROM (1) TO (9)")
    there = fingerprint(leaf(10, level))
    made.states.put(STATE.model_copy(update={"fingerprint": there}))
    doubt = Doubt(reason="r", since_ms=1, leaves=(DoubtfulLeaf(10, "7", (level,)),))
    said = made.ended.replaced(STATE.name, doubt)
    assert (said is None) == ("id" in {*derived.get("mask", {}), *derived.get("types", {})})
