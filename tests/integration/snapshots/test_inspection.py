"""A check's findings on a table with changing partitions, and a key from the settings."""

from typing import Final

import psycopg
import pytest

from cdc.postgres.connection import query
from cdc.postgres.fingerprints import fingerprints
from cdc.records.fingerprint import TableFingerprint
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.state import Doubt, Phase, TableState
from cdc.settings import CaptureSettings
from snapshots.inspection import Finding, Inspection, WatchedTable, inspect
from tests.fixtures.source import Conninfo, capture, run, session

pytestmark = pytest.mark.postgres
PARTED: Final = TableName("public", "parted")
SCHEMA: Final = (
    "CREATE TYPE mood AS ENUM ('fine', 'bad')",
    "CREATE TABLE parted (id int PRIMARY KEY, m mood) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
    "CREATE PUBLICATION p FOR TABLE parted WITH (publish_via_partition_root)",
)
NEW: Final = "CREATE TABLE p2 PARTITION OF parted FOR VALUES FROM (10) TO (20)"
FILLED: Final = (
    "CREATE TABLE p3 AS SELECT 20 AS id, 'bad'::mood AS m",
    "ALTER TABLE p3 ALTER id SET NOT NULL",
)
ATTACH: Final = "ALTER TABLE parted ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)"


def oid_of(opened: psycopg.Connection, table: str = "parted") -> int:
    ((oid,),) = query(opened, "SELECT %s::regclass::oid", [f"public.{table}"])
    return int(oid)


def taken(opened: psycopg.Connection) -> TableFingerprint:
    oid = oid_of(opened)
    return fingerprints(opened, [oid], "p")[oid].fingerprint


def inspected(
    opened: psycopg.Connection,
    settings: CaptureSettings,
    fingerprint: TableFingerprint | None,
    doubt: Doubt | None = None,
) -> Inspection:
    state = TableState(
        namespace=PARTED.namespace,
        table=PARTED.name,
        topic="t.public.parted",
        partitions=1,
        cleanup="compact",
        epoch=1,
        phase=Phase.STREAMING,
        snapshot_lsn=Lsn(1),
        oid=oid_of(opened),
        fingerprint=fingerprint,
        doubt=doubt,
    )
    return inspect(opened, settings, [WatchedTable(state, fingerprint)])


def finding_of(
    opened: psycopg.Connection, settings: CaptureSettings, fingerprint: TableFingerprint | None
) -> Finding:
    (finding,) = inspected(opened, settings, fingerprint).findings
    return finding


def kept(finding: Finding) -> TableFingerprint:
    """The fingerprint that the state gets."""
    assert finding.now is not None
    return finding.now.fingerprint


def test_a_new_partition_without_rows_needs_no_read(database: Conninfo) -> None:
    run(database, *SCHEMA)
    settings = capture(database, publication_name="p")
    with session(database) as opened, session(database) as other:
        before = taken(opened)
        run(database, NEW, *FILLED, ATTACH)
        with other.transaction():
            other.execute("LOCK TABLE public.p2")
            assert inspected(opened, settings, before).undecided == {PARTED}
        finding = finding_of(opened, settings, before)
        assert finding.differences.attached == (oid_of(opened, "p3"),)
        assert not finding.differences.causes
        assert inspected(opened, settings, kept(finding)).seen.keys() == {PARTED}


def test_a_partition_that_takes_the_place_of_one_that_went_earlier_replaces(
    database: Conninfo,
) -> None:
    run(database, *SCHEMA)
    settings = capture(database, publication_name="p")
    with session(database) as opened:
        before = taken(opened)
        run(database, "DROP TABLE p1")
        gone = finding_of(opened, settings, before)
        assert gone.differences.gone == 1
        for _ in range(2):
            inspection = inspected(opened, settings, kept(gone))
            assert not inspection.findings
        assert inspection.seen[PARTED].gone_bounds == kept(gone).gone_bounds
        run(database, *FILLED, "UPDATE p3 SET id = 1", ATTACH.replace("20) TO (30", "0) TO (10"))
        back = finding_of(opened, settings, inspection.seen[PARTED])
    assert [cause.replaces for cause in back.differences.causes] == [True]
    assert not kept(back).gone_bounds


@pytest.mark.parametrize("keys", ["", "public.parted:id,m"])
def test_a_type_of_a_key_that_the_settings_name_replaces(database: Conninfo, keys: str) -> None:
    run(database, *SCHEMA)
    settings = capture(database, publication_name="p", message_key_columns=keys)
    with session(database) as opened:
        before = taken(opened)
        run(database, "ALTER TYPE mood RENAME VALUE 'fine' TO 'good'")
        (cause,) = finding_of(opened, settings, before).differences.causes
    assert cause.replaces == bool(keys)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_unlogged_is_doubtful_as_long_as_it_is_so(
    database: Conninfo, *, is_first: bool
) -> None:
    """From the first check on, and again when somebody had it read."""
    run(database, *SCHEMA, NEW.replace("CREATE", "CREATE UNLOGGED"))
    settings = capture(database, publication_name="p")
    with session(database) as opened:
        before = None if is_first else taken(opened)
        (cause,) = finding_of(opened, settings, before).differences.causes
        assert (cause.replaces, cause.leaves) == (True, (oid_of(opened, "p2"),))
        doubt = Doubt(reason=cause.reason, since_ms=1, replaces=True)
        assert not inspected(opened, settings, taken(opened), doubt).findings
