"""Rows that differ → the verdict: how many, which keys, and whether they still differ."""

from collections import Counter
from pathlib import Path

from cdc.errors import ExitCode
from compaction.verify.confirm import ConfirmedRow, RowsByKey, confirmed
from compaction.verify.differences import DifferingRow, TableComparison, hashed_by
from compaction.verify.hashed import HashedTable
from compaction.verify.later_instant import still
from compaction.verify.report import VerifiedTable, VerifyReport
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule
from deploy.commands.verify import lines

RULE = Rule(Kind.INTEGER, lambda value: value)
TABLE = ComparedTable((ComparedColumn("id", "id", RULE), ComparedColumn("v", "v", RULE)), (0,), {})


def test_columns_that_differ_are_named_and_duplicates_counted() -> None:
    rows = [
        *(DifferingRow(1, "different", ("1",)), DifferingRow(2, "extra", ("2",))),
        *(DifferingRow(3, "missing", ("3",)), DifferingRow(4, "extra", ("4",))),
    ]
    source: RowsByKey = {1: [(1, 10)], 2: [(2, 20)], 3: [(3, 30)], 4: [(4, 40)]}
    derived: RowsByKey = {1: [(1, 11)], 2: [(2, 20), (2, 20), (2, 20)], 4: [(4, 40)]}
    assert list(confirmed(rows, source, derived, TABLE)) == [
        ConfirmedRow(("1",), "different", ("v",)),
        ConfirmedRow(("2",), "extra"),
        ConfirmedRow(("2",), "extra"),
        ConfirmedRow(("3",), "missing"),
    ], "4 is right by now"


def test_rows_without_a_key_are_those_that_differ_again_as_often() -> None:
    def found(*rows: DifferingRow) -> TableComparison:
        return TableComparison(1, 1, Counter(row.difference for row in rows), [*rows])

    missing, extra = DifferingRow(1, "missing", ()), DifferingRow(2, "extra", ())
    before = found(missing, missing, extra)
    assert still(before, found(missing, DifferingRow(3, "extra", ()))) == [
        ConfirmedRow((), "missing")
    ]


def test_a_report_says_the_worst_that_was_found() -> None:
    right = VerifiedTable(sink="search", name="public.a", source="public.a", kind="current", rows=5)
    differs = right.model_copy(update={"name": "public.b", "missing": 2, "healed": 1})
    left = right.model_copy(update={"name": "public.c", "unverified": "why"})
    kept = differs.model_copy(update={"unrepaired": "why"})
    unconfirmed = left.model_copy(update={"unconfirmed": 3})
    codes = []
    for tables in (
        *((right,), (right, left), (left, kept)),
        *((right, unconfirmed), (left, differs)),
    ):
        report = VerifyReport(lsn="0/1", ts_us=0, seconds=1, snapshot_s=1, tables=tables)
        codes.append(report.exit_code)
    assert codes == [
        ExitCode.OK,
        ExitCode.NOT_COMPARED,
        ExitCode.NOT_REPAIRED,
        ExitCode.DIFFERS,
        ExitCode.DIFFERS,
    ]
    assert list(lines(report))[1:] == [
        "search: public.c: not compared: why",
        "search: public.b: 5 rows, 2 differ: 2 missing here; 1 differed at the first instant only",
        "  and 2 more",
    ]


def test_a_table_says_how_long_ago_its_last_run_was() -> None:
    table = VerifiedTable(sink="search", name="a", source="a", kind="index", cut_ms=1_000)
    said = []
    for hours in (1, 72):
        ts_us = 1_000_000 + hours * 3_600_000_000
        report = VerifyReport(lsn="0/1", ts_us=ts_us, seconds=1, snapshot_s=1, tables=(table,))
        said.append([*lines(report)][1])
    right = "search: a: 0 rows, 0 differ"
    late = "; its last run was 72 h earlier and didn't apply later changes"
    assert said == [right, right + late]


def test_a_group_that_has_no_rows_has_no_file(tmp_path: Path) -> None:
    assert [*HashedTable(0, {}, 0, tmp_path).by_key({1})] == []


def test_keys_are_the_same_if_their_hashes_are_made_of_the_same() -> None:
    id_, value = TABLE.columns
    scaled = id_._replace(rule=Rule(Kind.DECIMAL, lambda value: value, scale=4))
    others = [
        TABLE._replace(columns=(scaled, value)),
        TABLE._replace(columns=(scaled._replace(rule=scaled.rule._replace(scale=2)), value)),
        TABLE._replace(columns=(id_._replace(source="renamed"), value)),
        TABLE._replace(key=()),
        TABLE._replace(key=(), columns=(id_, scaled)),
    ]
    assert len({hashed_by(TABLE), *map(hashed_by, others)}) == 1 + len(others)
    assert hashed_by(TABLE) == hashed_by(TABLE._replace(columns=(id_, scaled)))
