"""The publication's list → the part that concerns only this table."""

import pytest

from cdc.postgres.publications import Listed, Publication, Published
from cdc.records.fingerprint import PublicationFingerprint

TABLE, OTHER, ROOT, SCHEMA, ROOT_SCHEMA = 1, 2, 3, 50, 60
ENTRY = Listed(1000, "", "700")
PLAIN = Published(TABLE, SCHEMA)
PART = Published(TABLE, SCHEMA, ((ROOT, ROOT_SCHEMA, "700"),))
AGAIN = Published(TABLE, SCHEMA, ((ROOT, ROOT_SCHEMA, "801"),))


def publication(
    options: str = "iudt",
    tables: dict[int, Listed] | None = None,
    schemas: dict[int, Listed] | None = None,
) -> Publication:
    return Publication(9, "700", options, tables or {}, schemas or {}, {})


def changed(before: PublicationFingerprint, now: PublicationFingerprint) -> list[str]:
    return [name for name, value in before if value != getattr(now, name)]


@pytest.mark.parametrize(
    ("before", "now", "differ"),
    [
        ({}, {OTHER: ENTRY}, []),
        ({}, {TABLE: ENTRY}, ["entries", "entry_xmins"]),
        ({TABLE: ENTRY}, {TABLE: ENTRY._replace(content="filter")}, ["entries"]),
        ({TABLE: ENTRY}, {TABLE: ENTRY._replace(oid=1001)}, ["entries"]),
        ({TABLE: ENTRY}, {TABLE: ENTRY._replace(xmin="801")}, ["entry_xmins"]),
    ],
)
def test_entries_of_the_table_itself_matter(
    before: dict[int, Listed], now: dict[int, Listed], differ: list[str]
) -> None:
    first, second = (publication(tables=listed).fingerprint(PLAIN) for listed in (before, now))
    assert changed(first, second) == differ


@pytest.mark.parametrize(
    ("published", "differ"),
    [
        (publication("iudta"), []),
        (publication(tables={TABLE: ENTRY}), []),
        (publication(schemas={SCHEMA: ENTRY}), []),
        (publication(tables={ROOT: ENTRY}), ["entry_xmins"]),
        (publication(schemas={ROOT_SCHEMA: ENTRY}), ["entry_xmins"]),
        (publication("iudtra"), ["entry_xmins"]),
    ],
)
def test_a_partition_attached_again_matters_if_it_is_published_by_what_is_above(
    published: Publication, differ: list[str]
) -> None:
    assert changed(published.fingerprint(PART), published.fingerprint(AGAIN)) == differ


@pytest.mark.parametrize(
    ("published", "entry"),
    [
        (publication(), 0),
        (publication("iudta"), 9),
        (publication(schemas={SCHEMA: ENTRY}), ENTRY.oid),
        (publication(tables={ROOT: ENTRY}), ENTRY.oid),
        (publication("iudta", {TABLE: ENTRY, ROOT: ENTRY._replace(oid=999)}), 999),
    ],
)
def test_the_entry_is_the_table_s_or_that_of_a_table_above(
    published: Publication, entry: int
) -> None:
    assert published.entry(PART) == entry
