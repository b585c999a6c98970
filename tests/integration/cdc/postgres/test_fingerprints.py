"""DDL on a real server → the differences of two fingerprints, taken before and after it."""

import psycopg
import pytest

from cdc.postgres.connection import query
from cdc.postgres.fingerprints import fingerprints, has_old_row
from cdc.records.fingerprint import TableFingerprint
from cdc.tables.doubts import compare
from tests.fixtures.fingerprint_cases import (
    COLUMNS,
    EXPRESSIONS,
    FILES,
    LISTS,
    PARTITIONS,
    PUBLICATIONS,
    SCHEMA,
    TYPES,
    Case,
)
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres

SINCE_18 = pytest.mark.since(18, "generated columns in publications, and virtual ones")
SINCE_15 = pytest.mark.since(15, "row filters, column lists and schemas of publications")
MARKS = {id(LISTS): [SINCE_15], id(EXPRESSIONS): [SINCE_18]}
FEW = {
    *("label of a key", "label behind a domain", "label behind composites"),
    *("label renamed and back", "label added", "attribute renamed", "type's owner, grants, name"),
    *("unlogged", "same type using, without TOAST", "volatile default", "VACUUM FULL"),
    "rewritten, a row deleted in the meantime, and vacuumed",
    *("VACUUM FULL without TOAST", "TRUNCATE without TOAST", "TRUNCATE that isn't published"),
    *("harmless", "dropped and made again", "key", "key made again", "that is published"),
    *("operations changed and back", "owner", "taken out and in", "made again"),
    *("another taken out, another taken in", "nothing of all tables"),
    *("row filter", "schema out and in", "attached", "dropped", "truncated", "vacuumed"),
    *("detached, changed and attached", "a partition that is captured itself"),
}
"""Those of each kind that `make test` runs."""
CASES = [
    pytest.param(
        case,
        id=name,
        marks=[*MARKS.get(id(cases), ()), *(() if name in FEW else [pytest.mark.proof])],
    )
    for cases in (TYPES, FILES, COLUMNS, EXPRESSIONS, PUBLICATIONS, LISTS, PARTITIONS)
    for name, case in cases.items()
]


def oid_of(opened: psycopg.Connection, table: str) -> int:
    ((oid,),) = query(opened, "SELECT %s::regclass::oid", [f"public.{table}"])
    return int(oid)


@pytest.mark.parametrize("case", CASES)
def test_ddl_and_what_is_different(database: Conninfo, case: Case) -> None:
    run(database, *SCHEMA, case.publication)
    with session(database) as opened:
        oid = oid_of(opened, case.table)
        before = fingerprints(opened, [oid], "p")[oid].fingerprint
        before = TableFingerprint.model_validate_json(before.model_dump_json())
        run(database, *case.ddl)
        differences = compare(before, fingerprints(opened, [oid], "p")[oid].fingerprint)
        old = {leaf: has_old_row(opened, leaf, before.seen) for leaf in differences.unproven}
        attached = tuple(oid_of(opened, name) for name in case.attached)
    causes = [*differences.causes]
    causes += [differences.unproven[leaf] for leaf, is_old in old.items() if not is_old]
    assert tuple((cause.replaces, cause.reason) for cause in causes) == case.causes
    assert list(old.values()).count(True) == case.proven
    assert differences.altered == case.altered
    assert (differences.attached, differences.gone) == (attached, case.gone)
