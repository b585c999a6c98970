"""Wrong logs and PostgreSQL's texts → the checker detects the faults, and reads the texts right."""

import json
from dataclasses import replace

import pytest

from cdc.records.position import Lsn, Position
from cdc.records.topics import TRUNCATE_KEY
from tests.chaos.checker import check
from tests.chaos.state import check_state
from tests.chaos.verdict import KEYS, Verdict
from tests.chaos.witness import Row, Value, change, transactions
from tests.fixtures.pipeline import LogRecord

INSERTED = "a[integer]:1 b[text]:'it''s' v[bigint]:5 doc[jsonb]:null"
MOVED = (
    "old-key: a[integer]:1 b[text]:'it''s'"
    " new-tuple: a[integer]:2 b[text]:'it''s' v[bigint]:6 doc[jsonb]:unchanged-toast-datum"
)
WITNESS = [
    ("0/100", "BEGIN 700"),
    (
        "0/110",
        f"table public.pair: INSERT: {INSERTED}",
    ),
    ("0/120", "table public.loose: INSERT: v[integer]:7 t[text]:'a b' f[double precision]:0.5"),
    ("0/130", "COMMIT 700"),
    ("0/200", "BEGIN 702"),
    ("0/210", f"table public.pair: UPDATE: {MOVED}"),
    ("0/220", "table public.loose, public.bulk: TRUNCATE: (no-flags)"),
    ("0/230", "COMMIT 702"),
]
ROWS: dict[str, list[Row]] = {
    **{table: [] for table in KEYS},
    "pair": [
        {
            "a": Value("integer", "2"),
            "b": Value("text", "it's"),
            "v": Value("bigint", "6"),
            "doc": Value("jsonb", None),
        }
    ],
}


def record(xid: int, lsn: int, index: int, table: str, op: str, **members: object) -> LogRecord:
    """A record; its offset follows from its position, and one partition has them all."""
    key = members.get("key")
    value = {
        "op": op,
        "before": members.get("before"),
        "after": members.get("after"),
        "source": {"txId": xid},
    }
    return LogRecord(
        topic=f"chaos.public.{table}",
        partition=0,
        offset=lsn * 100 + index * 10 + ["d", "tombstone", "c", "u", "t", "r"].index(op),
        key=key if isinstance(key, str) or key is None else json.dumps(key),
        value=None if op == "tombstone" else value,
        position=Position(1, Lsn(lsn), index),
        schema_version=1,
    )


OLD, NEW = {"a": 1, "b": "it's"}, {"a": 2, "b": "it's"}
LOOSE = {"v": 7, "t": "a b", "f": 0.5}
TRUNCATED = TRUNCATE_KEY.decode()
LOG = [
    record(700, 1, 1, "pair", "c", key=OLD, after={**OLD, "v": 5, "doc": None}),
    record(700, 1, 2, "loose", "c", after=LOOSE),
    record(702, 2, 1, "pair", "d", key=OLD, before=OLD),
    record(702, 2, 1, "pair", "tombstone", key=OLD),
    record(702, 2, 1, "pair", "c", key=NEW, after={**NEW, "v": 6}),
    record(702, 2, 2, "loose", "t"),
    record(702, 2, 2, "bulk", "t", key=TRUNCATED),
]


def checked(records: list[LogRecord], rows: dict[str, list[Row]] = ROWS) -> Verdict:
    return check(list(transactions(WITNESS)), records, rows, dict.fromkeys(KEYS, 1))


def test_a_log_that_is_the_sources_history_is_good() -> None:
    verdict = checked(LOG)
    assert verdict.shown == []
    assert verdict.is_good
    assert (verdict.events, verdict.transactions) == (7, 2)


@pytest.mark.parametrize("missing", range(len(LOG)))
def test_a_record_that_is_missing_is_lost(missing: int) -> None:
    verdict = checked(LOG[:missing] + LOG[missing + 1 :])
    assert verdict.lost == 1
    assert not verdict.is_good


@pytest.mark.parametrize("again", range(len(LOG)))
def test_a_record_that_is_there_again_is_a_duplicate(again: int) -> None:
    assert checked([*LOG, replace(LOG[again], offset=999)]).duplicated == 1


def test_a_transaction_that_is_there_again_or_was_rolled_back_is_a_duplicate() -> None:
    again = [
        replace(r, position=r.position._replace(commit_lsn=Lsn(3)), offset=900) for r in LOG[:2]
    ]
    assert checked([*LOG, *again]).duplicated == 2
    undone = record(701, 3, 1, "bulk", "c", key={"batch": 1, "n": 1}, after={"batch": 1, "n": 1})
    assert checked([*LOG, undone]).duplicated == 1


def test_records_and_transactions_out_of_order_are_found() -> None:
    swapped = [replace(LOG[2], offset=LOG[4].offset), *LOG[:2], *LOG[3:4], *LOG[5:]]
    assert checked([*swapped, replace(LOG[4], offset=LOG[2].offset)]).disordered == 1
    delayed = [
        replace(r, position=r.position._replace(commit_lsn=Lsn(3)), offset=0) for r in LOG[:2]
    ]
    assert checked([*LOG[2:], *delayed]).disordered > 0
    elsewhere = replace(LOG[2], partition=1)
    assert checked([*LOG[:2], elsewhere, *LOG[3:]]).disordered > 0


def test_other_values_keys_and_rows_are_found() -> None:
    other = record(702, 2, 1, "pair", "c", key=NEW, after={**NEW, "v": 7})
    assert checked([*LOG[:4], other, *LOG[5:]]).different == 2  # the event, and the last state
    other = record(702, 2, 1, "pair", "c", key=OLD, after={**NEW, "v": 6})
    assert checked([*LOG[:4], other, *LOG[5:]]).different > 0
    other = record(700, 1, 2, "loose", "c", after={**LOOSE, "f": 0.25})
    assert checked([LOG[0], other, *LOG[2:]]).different == 1
    assert checked(LOG, {**ROWS, "pair": []}).different == 1
    missing = {"batch": Value("integer", "1"), "n": Value("integer", "1")}
    assert checked(LOG, {**ROWS, "bulk": [missing]}).different == 1


def test_a_row_that_is_read_again_is_what_the_log_has_by_then() -> None:
    same = record(0, 3, 0, "pair", "r", key=NEW, after={**NEW, "v": 6, "doc": None})
    verdict = checked([*LOG, same])
    assert (verdict.is_good, verdict.read_again) == (True, 1)
    older = record(0, 3, 0, "pair", "r", key=NEW, after={**NEW, "v": 5})
    renewed = record(0, 4, 0, "pair", "r", key=NEW, after={**NEW, "v": 6})
    assert checked([*LOG, older, renewed]).different == 2  # nor was there such a row in between
    gone = record(0, 3, 0, "pair", "r", key=OLD, after={**OLD, "v": 5})
    assert checked([*LOG, gone]).different == 2


def test_a_value_that_was_filled_in_may_be_newer_than_a_row_that_is_read_behind_it() -> None:
    key = {"id": 1}
    records = [
        record(0, 1, 0, "item", "r", key=key, after={"id": 1, "name": "a", "big": "old"}),
        record(700, 2, 1, "item", "u", key=key, after={"id": 1, "name": "b", "big": "new"}),
        record(0, 3, 0, "item", "r", key=key, after={"id": 1, "name": "b", "big": "old"}),
        record(702, 4, 1, "item", "u", key=key, after={"id": 1, "name": "b", "big": "new"}),
    ]
    row = {"id": Value("bigint", "1"), "name": Value("text", "b"), "big": Value("text", "new")}
    for filled, different in (((), 1), ((3,), 0)):
        verdict = Verdict()
        records[1] = replace(records[1], filled=filled)
        check_state("item", records, [row], verdict)
        assert verdict.different == different


def test_a_change_is_read_as_test_decoding_prints_it() -> None:
    line = (
        "table public.item: UPDATE: old-key: id[bigint]:-1 new-tuple: id[bigint]:2"
        " amount[numeric]:NaN at[timestamp with time zone]:'2026-01-02 03:04:05.678+00'"
        " tags[text[]]:'{a,b}' ok[boolean]:false big[text]:unchanged-toast-datum n[text]:'x: ''y'''"
    )
    read = change(line)
    assert read.old == {"id": Value("bigint", "-1")}
    assert read.new is not None
    assert read.new["amount"] == Value("numeric", "NaN")
    assert read.new["tags"] == Value("text[]", "{a,b}")
    assert read.new["big"] == Value("text", None, unchanged=True)
    assert read.new["n"] == Value("text", "x: 'y'")
    with pytest.raises(ValueError, match="not a line"):
        change("table public.item: UPSERT: id[bigint]:1")
