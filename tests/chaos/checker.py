"""Committed changes, the log as read, and the source's rows → the differences.

A change's frame has an index in its transaction. The records made of it have that index in their
position. So each record has one place: a missing one is lost, a second one is a duplicate, and one
in another place is out of order.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from cdc.records.topics import TRUNCATE_KEY
from tests.chaos.frames import check_frame
from tests.chaos.state import check_state
from tests.chaos.verdict import KEYS, Verdict, begins_read, named, table_of
from tests.chaos.witness import Row, Transaction
from tests.fixtures.pipeline import LogRecord


def check(
    committed: Sequence[Transaction],
    records: Sequence[LogRecord],
    rows: Mapping[str, Sequence[Row]],
    partitions: Mapping[str, int],
) -> Verdict:
    """Compare all; ``partitions`` of each table's topic, ``rows`` as SELECT prints them."""
    verdict = Verdict(events=len(records))
    ordered = sorted(records, key=lambda record: record.offset)
    _check_order(ordered, verdict)
    _check_transactions(committed, ordered, partitions, verdict)
    for table in KEYS:
        own = [record for record in records if table_of(record) == table]
        check_state(table, own, rows[table], verdict)
    return verdict


def _check_order(ordered: Sequence[LogRecord], verdict: Verdict) -> None:
    """Positions grow with offsets, and a key stays in its partition."""
    last: dict[tuple[str, int], LogRecord] = {}
    homes: dict[tuple[str, str], int] = {}
    for record in ordered:
        before = last.get((record.topic, record.partition))
        if before is not None and record.position < before.position:
            verdict.disordered += 1
            verdict.tell(f"out of order: {named(record)} after {before.position}")
        last[record.topic, record.partition] = record
        if record.key is None or record.key == TRUNCATE_KEY.decode():
            continue
        home = homes.setdefault((record.topic, record.key), record.partition)
        if home != record.partition:
            verdict.disordered += 1
            verdict.tell(f"another partition than {home}: {named(record)}")


def _check_transactions(
    committed: Sequence[Transaction],
    ordered: Sequence[LogRecord],
    partitions: Mapping[str, int],
    verdict: Verdict,
) -> None:
    by_xid = _by_xid(ordered, verdict)
    changing = [transaction for transaction in committed if transaction.changes]
    verdict.transactions = len(changing)
    ranks = {transaction.xid: rank for rank, transaction in enumerate(changing)}
    for before, after in pairwise(ranks[xid] for xid in by_xid if xid in ranks):
        if after < before:
            verdict.disordered += 1
            verdict.tell(f"transaction {changing[after].xid} comes after {changing[before].xid}")
    for transaction in changing:
        _check_frames(transaction, by_xid.pop(transaction.xid, []), partitions, verdict)
    for xid, records in by_xid.items():
        verdict.duplicated += len(records)
        verdict.tell(f"transaction {xid} was never committed: {named(records[0])}")


def _by_xid(ordered: Iterable[LogRecord], verdict: Verdict) -> dict[int, list[LogRecord]]:
    """Streamed records by transaction, in the order of commits that their positions tell."""
    by_commit: dict[int, list[LogRecord]] = defaultdict(list)
    for record in ordered:
        if record.position.index > 0 and not begins_read(record):
            by_commit[record.position.commit_lsn].append(record)
    by_xid: dict[int, list[LogRecord]] = {}
    for lsn in sorted(by_commit):
        records = by_commit[lsn]
        xids = {r.value["source"]["txId"] for r in records if r.value is not None}
        if len(xids) != 1 or xids <= by_xid.keys():
            verdict.duplicated += len(records)
            verdict.tell(f"transactions {xids} at {lsn:x}, where or while there is another")
        else:
            by_xid[xids.pop()] = records
    return by_xid


def _check_frames(
    transaction: Transaction,
    records: Iterable[LogRecord],
    partitions: Mapping[str, int],
    verdict: Verdict,
) -> None:
    frames: dict[int, list[LogRecord]] = defaultdict(list)
    for record in records:
        frames[record.position.index].append(record)
    where = f"transaction {transaction.xid} (its commit ends at {transaction.lsn})"
    for index, change in enumerate(transaction.changes, 1):
        check_frame(where, change, frames.pop(index, []), partitions, verdict)
    for extra in frames.values():
        verdict.duplicated += len(extra)
        verdict.tell(f"nothing was changed there: {named(extra[0])}")
