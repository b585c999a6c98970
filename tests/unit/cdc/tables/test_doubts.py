"""Two fingerprints → their differences, by rule; and they are stored unchanged."""

from typing import Any

import pytest

from cdc.records.fingerprint import (
    GONE_BOUNDS_MAX,
    AttributeFingerprint,
    LabelFingerprint,
    LeafFingerprint,
    PublicationFingerprint,
    TableFingerprint,
    TypeFingerprint,
)
from cdc.tables.doubts import Cause, Differences, compare, first

FINE = LabelFingerprint(101, "fine", 1, "700")
BAD = LabelFingerprint(102, "bad", 2, "700")
X = AttributeFingerprint(1, "x", 23, -1, dropped=False, xmin="700")
MOOD = TypeFingerprint(name="public.mood", labels=(FINE, BAD))
PLACE = TypeFingerprint(name="public.place", attributes=(X,))
PUBLISHED = PublicationFingerprint(
    oid=5, xmin="700", options="iudtr", entries="e", entry_xmins="700"
)
UNTRUNCATED = PUBLISHED.model_copy(update={"options": "iudr"})
LEAF = LeafFingerprint(1, "r", 1, 2, "p")
NARROW = LEAF._replace(toast=0)
PART = LeafFingerprint(11, "r", 11, 12, "p", "700", "b1")
PART_2 = LeafFingerprint(21, "r", 21, 22, "p", "700", "b2")
FOREIGN = LeafFingerprint(31, "f", 0, 0, "p", "700", "b3")
TABLE = TableFingerprint(
    columns="c",
    generated={3: "g"},
    identity="d 1 ",
    types={100: MOOD, 200: PLACE},
    publication=PUBLISHED,
    leaves=(LEAF,),
    seen="800:800:",
)
REWRITTEN = Cause(
    "the table was rewritten by an ALTER TABLE (SET LOGGED, ALTER COLUMN … USING …)",
    replaces=True,
    locks=True,
)
OTHER_FILE = Cause(
    "the table has a new file without old rows: rewritten or truncated", replaces=True, locks=True
)
RENAMED = Cause("labels of enum public.mood were renamed", replaces=False)
BACK = Cause("labels of enum public.mood were renamed and renamed back", replaces=False)
ATTRIBUTES = Cause("attributes of composite type public.place were changed", replaces=False)
REATTACHED = Cause("a partition was detached and attached again", replaces=True, locks=True)
EXCHANGED = Cause("a partition was exchanged", replaces=True, locks=True)
NEW_FILE = Cause(
    "a new partition was truncated or rewritten, before it was attached or since",
    replaces=True,
    locks=True,
)
UNLOGGED = Cause("the table is unlogged: its changes aren't in the WAL", replaces=True, locks=True)
PARTITION_UNLOGGED = Cause(
    "a partition is unlogged: its changes aren't in the WAL", replaces=True, locks=True
)


def labels(*each: LabelFingerprint) -> dict[str, Any]:
    return {"types": {100: MOOD.model_copy(update={"labels": each}), 200: PLACE}}


def attributes(*each: AttributeFingerprint) -> dict[str, Any]:
    return {"types": {100: MOOD, 200: PLACE.model_copy(update={"attributes": each})}}


def publication(**fields: object) -> dict[str, Any]:
    return {"publication": PUBLISHED.model_copy(update=fields)}


def leaves(*each: LeafFingerprint) -> dict[str, Any]:
    return {"leaves": each}


def because(*causes: Cause) -> Differences:
    return Differences(causes=causes)


def unless_old(leaf: int, cause: Cause) -> Differences:
    return Differences(unproven={leaf: cause})


def with_text(reason: str) -> Differences:
    return because(Cause(reason, replaces=True))


KEYED = {"key_types": (100, 200)}
NONE = Differences()
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Differences]] = {
    "nothing": ({}, {"seen": "900:900:"}, NONE),
    "label renamed": ({}, labels(FINE._replace(text="good"), BAD), because(RENAMED)),
    "label of a key renamed": (
        KEYED,
        {**KEYED, **labels(FINE._replace(text="good"), BAD)},
        because(RENAMED._replace(replaces=True)),
    ),
    "labels have swapped their texts": (
        {},
        labels(FINE._replace(text="bad"), BAD._replace(text="fine")),
        because(RENAMED),
    ),
    "label renamed and back": ({}, labels(FINE._replace(xmin="801"), BAD), because(BACK)),
    "label added": ({}, labels(FINE, BAD, LabelFingerprint(103, "ill", 3, "801")), NONE),
    "labels numbered again": (
        {},
        labels(FINE, BAD._replace(order=3, xmin="801"), LabelFingerprint(103, "ill", 2, "801")),
        NONE,
    ),
    "label gone": ({}, labels(FINE), because(RENAMED)),
    "enum has another name": (
        {},
        {"types": {100: MOOD.model_copy(update={"name": "public.temper"}), 200: PLACE}},
        NONE,
    ),
    "type of another column": ({}, {"types": {100: MOOD, 200: PLACE, 300: MOOD}}, NONE),
    "attribute renamed": ({}, attributes(X._replace(name="z", xmin="801")), because(ATTRIBUTES)),
    "attribute has another type": ({}, attributes(X._replace(type_oid=20)), because(ATTRIBUTES)),
    "attribute dropped": ({}, attributes(X._replace(dropped=True)), because(ATTRIBUTES)),
    "attribute added": ({}, attributes(X, X._replace(number=2)), because(ATTRIBUTES)),
    "attribute of a key changed": (
        KEYED,
        {**KEYED, **attributes(X._replace(name="z"))},
        because(ATTRIBUTES._replace(replaces=True)),
    ),
    "attribute changed and back": (
        {},
        attributes(X._replace(xmin="801")),
        because(ATTRIBUTES._replace(reason=f"{ATTRIBUTES.reason} and changed back")),
    ),
    "expression": (
        {},
        {"generated": {3: "h"}},
        because(
            Cause("the expression of a generated column was changed", replaces=False, locks=True)
        ),
    ),
    "another generated column": ({}, {"generated": {4: "h"}}, NONE),
    "columns": ({}, {"columns": "d"}, Differences(altered=True)),
    "identity": ({}, {"identity": "f 1 "}, Differences(altered=True)),
    "options": (
        {},
        publication(xmin="801", options="iu"),
        with_text("the publication's options were changed"),
    ),
    "options and back": (
        {},
        publication(xmin="801"),
        with_text("the publication's options were changed and changed back, or its owner was"),
    ),
    "entry": (
        {},
        publication(entries="f", entry_xmins="801"),
        with_text(
            "how the publication lists the table was changed (row filter, column list, taken out"
            " and in)"
        ),
    ),
    "entry and back": (
        {},
        publication(entry_xmins="801"),
        with_text("how the publication lists the table was changed and changed back"),
    ),
    "publication made again": (
        {},
        publication(oid=6, xmin="801"),
        with_text("the publication was dropped and created again"),
    ),
    "publication dropped": (
        {},
        {"publication": PublicationFingerprint()},
        with_text("the publication was dropped"),
    ),
    "publication created": (
        {"publication": PublicationFingerprint()},
        {},
        with_text("the publication was created"),
    ),
    "no publication": (
        {"publication": PublicationFingerprint()},
        {"publication": PublicationFingerprint()},
        NONE,
    ),
    "new file, same TOAST table": ({}, leaves(LEAF._replace(file=9)), NONE),
    "new file, same TOAST table, TRUNCATE isn't published": (
        {"publication": UNTRUNCATED},
        {"publication": UNTRUNCATED, **leaves(LEAF._replace(file=9))},
        unless_old(
            1,
            Cause(
                "the table has a new file without old rows: a TRUNCATE that isn't published",
                replaces=True,
                locks=True,
            ),
        ),
    ),
    "new file, new TOAST table": ({}, leaves(LEAF._replace(file=9, toast=8)), because(REWRITTEN)),
    "new file, no TOAST table": (
        leaves(NARROW),
        leaves(NARROW._replace(file=9)),
        unless_old(1, OTHER_FILE),
    ),
    "new file, TOAST table is gone": (
        {},
        leaves(NARROW._replace(file=9)),
        unless_old(1, OTHER_FILE),
    ),
    "new file, first TOAST table": (
        leaves(NARROW),
        leaves(LEAF._replace(file=9)),
        unless_old(1, OTHER_FILE),
    ),
    "same file, first TOAST table": (leaves(NARROW), leaves(LEAF), NONE),
    "unlogged": (
        {},
        leaves(LEAF._replace(persistence="u", file=9, toast=8)),
        because(UNLOGGED),
    ),
    "logged": (
        leaves(NARROW._replace(persistence="u")),
        leaves(NARROW._replace(file=9)),
        because(
            UNLOGGED._replace(
                reason="the table was unlogged: changes from that time aren't in the WAL"
            )
        ),
    ),
    "partition attached": (
        leaves(PART),
        leaves(PART, PART_2),
        Differences(attached=(PART_2.oid,)),
    ),
    "partition gone": (leaves(PART, PART_2), leaves(PART_2), Differences(gone=1)),
    "partition exchanged": (
        leaves(PART),
        leaves(PART_2._replace(bound=PART.bound)),
        Differences((EXCHANGED._replace(leaves=(21,)),), attached=(21,), gone=1),
    ),
    "partition exchanged for one that went earlier": (
        {**leaves(PART), "gone_bounds": (PART_2.bound,)},
        leaves(PART, PART_2),
        Differences((EXCHANGED._replace(leaves=(21,)),), attached=(21,)),
    ),
    "partition attached after too many went": (
        {
            **leaves(PART),
            "gone_bounds": tuple(f"o{number}" for number in range(GONE_BOUNDS_MAX + 1)),
        },
        leaves(PART, PART_2),
        Differences((EXCHANGED._replace(leaves=(21,)),), attached=(21,)),
    ),
    "one partition gone, another attached": (
        leaves(PART),
        leaves(PART_2),
        Differences(attached=(21,), gone=1),
    ),
    "partition attached with a file that isn't its first": (
        leaves(PART),
        leaves(PART, PART_2._replace(file=29)),
        Differences((NEW_FILE._replace(leaves=(21,)),), attached=(21,)),
    ),
    "unlogged partition attached": (
        leaves(PART),
        leaves(PART, PART_2._replace(persistence="u")),
        Differences((PARTITION_UNLOGGED._replace(leaves=(21,)),), attached=(21,)),
    ),
    "still unlogged": (
        leaves(LEAF._replace(persistence="u")),
        leaves(LEAF._replace(persistence="u")),
        NONE,
    ),
    "foreign table attached": (leaves(PART), leaves(PART, FOREIGN), NONE),
    "partitions attached again": (
        leaves(PART, PART_2),
        leaves(PART._replace(attached="801"), PART_2._replace(attached="801")),
        because(REATTACHED._replace(leaves=(PART.oid, PART_2.oid))),
    ),
    "partition attached elsewhere": (
        leaves(PART),
        leaves(PART._replace(attached="801", bound="b9")),
        because(REATTACHED),
    ),
    "partition rewritten": (
        leaves(PART, PART_2),
        leaves(PART._replace(file=9, toast=8), PART_2),
        because(
            REWRITTEN._replace(
                reason=REWRITTEN.reason.replace("the table", "a partition"), leaves=(PART.oid,)
            )
        ),
    ),
    "partition has a new file, same TOAST table": (
        leaves(PART),
        leaves(PART._replace(file=9)),
        unless_old(
            PART.oid,
            Cause(
                "a partition has a new file without old rows: a TRUNCATE that isn't published",
                replaces=True,
                locks=True,
                leaves=(PART.oid,),
            ),
        ),
    ),
    "partition has a new file, and was attached again": (
        leaves(PART),
        leaves(PART._replace(file=9, attached="801")),
        because(REATTACHED._replace(leaves=(PART.oid,))),
    ),
}


@pytest.mark.parametrize(("before", "now", "expected"), CASES.values(), ids=CASES.keys())
def test_what_is_different(
    before: dict[str, Any], now: dict[str, Any], expected: Differences
) -> None:
    differences = compare(TABLE.model_copy(update=before), TABLE.model_copy(update=now))
    assert differences == expected


@pytest.mark.parametrize(
    ("fingerprint", "expected"),
    [
        (leaves(LEAF, FOREIGN), NONE),
        (leaves(LEAF._replace(persistence="u")), because(UNLOGGED)),
        (
            leaves(PART, *(leaf._replace(persistence="u") for leaf in (PART_2, FOREIGN))),
            because(PARTITION_UNLOGGED._replace(leaves=(21,))),
        ),
    ],
)
def test_what_is_doubtful_from_the_first_on(
    fingerprint: dict[str, Any], expected: Differences
) -> None:
    now = TABLE.model_copy(update=fingerprint)
    assert first(now) == expected
    assert now.unlogged == bool(expected.causes)


@pytest.mark.parametrize("types", [labels(FINE._replace(text="good"), BAD), attributes()])
def test_any_type_can_be_part_of_a_key_that_the_settings_name(types: dict[str, Any]) -> None:
    now = TABLE.model_copy(update=types)
    for is_rekeyed in (False, True):
        (cause,) = compare(TABLE, now, is_rekeyed=is_rekeyed).causes
        assert cause.replaces == is_rekeyed


@pytest.mark.parametrize(
    ("before", "now", "is_other"),
    [
        ("d 1 ", "d 1 ", False),
        ("d 1 ", "d 2 ", True),
        ("d 1,2 ", "d 2,1 ", True),
        ("i  1", "i  2", True),
        ("i  1", "d 1 ", False),
        ("d  ", "d 1 ", True),
        ("f 1 ", "f  ", True),
    ],
)
def test_rows_under_another_key_are_replaced(before: str, now: str, *, is_other: bool) -> None:
    """Rows that had none are by one, and the other way round, if the topic takes such."""
    pair = [TABLE.model_copy(update={"identity": identity}) for identity in (before, now)]
    reasons = [cause.reason for cause in compare(*pair).causes if cause.replaces]
    assert reasons == (["the key has other columns"] if is_other else [])
    assert compare(*pair, is_rekeyed=True).causes == ()


def test_bounds_of_partitions_that_are_gone_are_carried_until_they_are_taken() -> None:
    both, one, other, none = (
        TABLE.model_copy(update=leaves(*each))
        for each in ((PART, PART_2, FOREIGN), (PART,), (PART_2,), ())
    )
    assert both.carrying(both) == both
    assert one.carrying(both).gone_bounds == ("b2",)
    assert one.carrying(one.carrying(both)).gone_bounds == ("b2",)
    assert none.carrying(one.carrying(both)).gone_bounds == ("b2", "b1")
    assert other.carrying(one.carrying(both)).gone_bounds == ("b1",)
    assert TABLE.carrying(TABLE) == TABLE


def test_of_many_bounds_that_are_gone_the_newest_are_kept_and_that_there_were_more() -> None:
    many = tuple(f"o{number}" for number in range(GONE_BOUNDS_MAX + 5))
    now = TABLE.carrying(TABLE.model_copy(update={"gone_bounds": many}))
    assert now.gone_bounds == many[4:]
    assert TABLE.carrying(now) == now


def test_a_fingerprint_is_stored_as_it_is_and_small() -> None:
    fingerprint = TABLE.model_copy(update=leaves(PART, PART_2, FOREIGN))
    text = fingerprint.model_dump_json()
    assert TableFingerprint.model_validate_json(text) == fingerprint
    assert '[11,"r",11,12,"p","700","b1",[],0]' in text
