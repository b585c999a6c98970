"""The contract that every target meets: a new target is a class with one more fixture.

Each case runs the engine over a log written by hand, and asks the target for its rows.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.errors import ExitCode
from deploy.local.kafka import Kafka
from sinks.run.engine import Run
from tests.fixtures.ended_rows import between, ended
from tests.fixtures.indexes import Indexes
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column
from tests.fixtures.targets import (
    IndexInTest,
    LakehouseInTest,
    MemoryInTest,
    RowsById,
    TargetInTest,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
COLUMNS = (
    column("id", "int4", 1, number=1),
    column("a", "text", number=2),
    column("n", "int8", number=3),
)


class Killed(BaseException):
    """The process dies; nothing in it may catch that."""


def begun(target: TargetInTest, rows: int = 3) -> HandLog:
    """A table whose snapshot is applied."""
    log = target.log(*COLUMNS)
    for number in range(rows):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}", "n": number})
    log.table(100)
    log.reached(at(100, 0))
    assert target.merge().exit_code == ExitCode.OK
    return log


def change(log: HandLog, lsn: int) -> None:
    """An update, a delete, an insert, and an update of the inserted row."""
    log.row("u", at(lsn, 1), {"id": 0, "a": f"of {lsn}", "n": lsn})
    log.row("d", at(lsn, 2), None, {"id": 1})
    log.tombstone(at(lsn, 2), {"id": 1})
    log.row("c", at(lsn, 3), {"id": 9, "a": "new", "n": 0})
    log.row("u", at(lsn, 4), {"id": 9, "a": "newer", "n": lsn})
    log.reached(at(lsn, 4))


def changed(lsn: int) -> RowsById:
    return {
        0: {"id": 0, "a": f"of {lsn}", "n": lsn},
        2: {"id": 2, "a": "a2", "n": 2},
        9: {"id": 9, "a": "newer", "n": lsn},
    }


def renamed(log: HandLog, lsn: int) -> None:
    """The daemon's check of the catalog has seen that ``n`` is ``q`` since; nobody writes."""
    columns = (*COLUMNS[:2], column("q", "int8", number=3))
    update = {"version": 2, "columns": columns, "signature": "2", "since": str(at(lsn))}
    log.add_schema(log.schema.model_copy(update=update))


def before(original: Callable[..., Any]) -> Callable[..., Any]:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    return die


def after(original: Callable[..., Any]) -> Callable[..., Any]:
    def die(*args: Any, **more: Any) -> None:
        original(*args, **more)
        raise Killed

    return die


KILLS = [
    pytest.param(step, dying, first, id=f"{name}{first * ', first load'}")
    for step, dying, name in (
        ("_apply", before, "planned"),
        ("_applied", after, "applied"),
        ("_finished", before, "not recorded"),
        ("_finished", after, "recorded"),
    )
    for first in (True, False)
]


RENAME_KILLS = [
    ("_apply", before),
    ("_applied", after),
    ("_finished", before),
    ("_finished", after),
]


class Exactness:
    """Each change once, also by runs that are killed; a subclass has a fixture ``target``."""

    @pytest.mark.proof
    def test_changes_are_applied_once(self, target: TargetInTest) -> None:
        log = begun(target)
        change(log, 200)
        assert target.merge().exit_code == ExitCode.OK
        assert target.rows() == changed(200)
        assert target.merge().exit_code == ExitCode.NOTHING_TO_DO
        assert target.rows() == changed(200)

    @pytest.mark.proof
    @pytest.mark.parametrize(("step", "dying", "first"), KILLS)
    def test_a_run_that_is_killed_is_finished_by_the_next(
        self, target: TargetInTest, step: str, dying: Callable[..., Any], first: bool
    ) -> None:
        if first:
            log = target.log(*COLUMNS)
            for number in range(3):
                log.row("r", at(100, 0), {"id": number, "a": f"a{number}", "n": number})
            log.table(100)
        else:
            log = begun(target)
        change(log, 200)
        with patch.object(Run, step, dying(getattr(Run, step))), pytest.raises(Killed):
            target.merge()
        log.row("u", at(300), {"id": 2, "a": "since", "n": 3})
        log.reached(at(300))
        assert target.merge().exit_code == ExitCode.OK
        assert target.rows() == changed(200) | {2: {"id": 2, "a": "since", "n": 3}}

    @pytest.mark.proof
    def test_a_column_is_renamed_though_nobody_writes_to_the_table(
        self, target: TargetInTest
    ) -> None:
        log = begun(target)
        expected = target.rows()
        renamed(log, 200)
        log.reached(at(150))
        assert target.merge().exit_code == ExitCode.NOTHING_TO_DO
        assert target.rows() == expected, "it is so behind the cut"
        log.reached(at(200))
        assert target.merge().exit_code == ExitCode.OK
        expected = {key: {"id": key, "a": f"a{key}", "q": key} for key in expected}
        assert target.rows() == expected
        assert target.merge().exit_code == ExitCode.NOTHING_TO_DO
        log.row("u", at(300), {"id": 2, "a": "since", "q": 3})
        log.reached(at(300))
        assert target.merge().exit_code == ExitCode.OK
        assert target.rows() == expected | {2: {"id": 2, "a": "since", "q": 3}}

    @pytest.mark.proof
    @pytest.mark.parametrize(("step", "dying"), RENAME_KILLS)
    def test_a_rename_that_is_interrupted_is_finished_by_the_next_run(
        self, target: TargetInTest, step: str, dying: Callable[..., Any]
    ) -> None:
        log = begun(target)
        renamed(log, 200)
        log.reached(at(200))
        with patch.object(Run, step, dying(getattr(Run, step))), pytest.raises(Killed):
            target.merge()
        target.merge()
        assert target.rows() == {key: {"id": key, "a": f"a{key}", "q": key} for key in range(3)}
        assert target.merge().exit_code == ExitCode.NOTHING_TO_DO


class Details:
    """What becomes of each kind of change; a subclass has a fixture ``target``."""

    def test_values_that_an_update_leaves_out_are_kept(self, target: TargetInTest) -> None:
        log = begun(target)
        log.row("u", at(200, 1), {"id": 0, "n": 7})
        log.row("u", at(200, 2), {"id": 1, "a": "read later", "n": 7}, filled=["a"])
        log.reached(at(200, 2))
        assert target.merge().exit_code == ExitCode.OK
        rows = {key: (row["a"], row["n"]) for key, row in target.rows().items()}
        assert rows == {0: ("a0", 7), 1: ("a1", 7), 2: ("a2", 2)}

    def test_a_truncate_takes_what_was_there_before(self, target: TargetInTest) -> None:
        log = begun(target)
        log.row("u", at(200, 1), {"id": 0, "a": "in vain", "n": 1})
        log.truncate(at(200, 2))
        log.row("c", at(200, 3), {"id": 1, "a": "again", "n": 1})
        log.reached(at(200, 3))
        assert target.merge().exit_code == ExitCode.OK
        assert target.rows() == {1: {"id": 1, "a": "again", "n": 1}}

    def test_rows_of_a_dropped_partition_go_and_newer_ones_stay(self, target: TargetInTest) -> None:
        log = begun(target)
        log.row("u", at(200, 1), {"id": 1, "a": "in vain", "n": 1})
        log.row("c", at(300, 1), {"id": 0, "a": "in the next partition", "n": 1})
        log.drop(at(400, 0), ended(at(299), between("id", [0], [2])))
        log.reached(at(400, 0))
        assert target.merge().exit_code == ExitCode.OK
        expected = {
            0: {"id": 0, "a": "in the next partition", "n": 1},
            2: {"id": 2, "a": "a2", "n": 2},
        }
        assert target.rows() == expected
        target.remove()
        log.row("u", at(500), {"id": 2, "a": "since", "n": 3})
        log.reached(at(500))
        assert target.merge().exit_code == ExitCode.OK
        assert target.rows() == expected | {2: {"id": 2, "a": "since", "n": 3}}

    def test_a_row_whose_key_changes_is_another_row(self, target: TargetInTest) -> None:
        log = begun(target)
        log.row("d", at(200, 1), None, {"id": 0})
        log.tombstone(at(200, 1), {"id": 0})
        log.row("c", at(200, 1), {"id": 7, "a": "a0", "n": 0})
        log.reached(at(200, 1))
        assert target.merge().exit_code == ExitCode.OK
        assert {key: row["a"] for key, row in target.rows().items()} == {7: "a0", 1: "a1", 2: "a2"}

    def test_a_column_that_is_added_arrives(self, target: TargetInTest) -> None:
        log = begun(target)
        added = (*COLUMNS, column("added", "int4", number=4))
        version = log.schema.model_copy(update={"version": 2, "columns": added, "signature": "2"})
        log.add_schema(version)
        log.row("u", at(200), {"id": 0, "a": "a0", "n": 0, "added": 5})
        log.reached(at(200))
        assert target.merge().exit_code == ExitCode.OK
        assert target.rows()[0] == {"id": 0, "a": "a0", "n": 0, "added": 5}

    def test_a_table_that_was_removed_is_built_again(self, target: TargetInTest) -> None:
        log = begun(target)
        change(log, 200)
        assert target.merge().exit_code == ExitCode.OK
        target.remove()
        log.row("u", at(300), {"id": 2, "a": "since", "n": 3})
        log.reached(at(300))
        assert target.merge().exit_code == ExitCode.OK
        assert target.rows() == changed(200) | {2: {"id": 2, "a": "since", "n": 3}}

    @pytest.mark.proof
    def test_a_bounded_run_stops_at_a_commit_and_later_ones_go_on(
        self, target: TargetInTest
    ) -> None:
        log = begun(target)
        for lsn in range(200, 240):
            log.row("u", at(lsn), {"id": 0, "a": f"of {lsn}", "n": lsn})
        log.reached(at(239))
        assert target.merge(records_max=10).exit_code == ExitCode.OK
        reached = target.rows()[0]["n"]
        assert 200 <= reached < 239
        assert target.rows()[0]["a"] == f"of {reached}"
        while target.merge(records_max=10).exit_code == ExitCode.OK:
            assert target.rows()[0]["n"] > reached
            reached = target.rows()[0]["n"]
        assert reached == 239

    def test_what_the_log_has_forgotten_is_not_in_a_table_that_comes_late(
        self, target: TargetInTest, kafka: Kafka
    ) -> None:
        """A deleted row has no record left; the newest state of each other key has."""
        log = begun(target)
        admin = AdminClient({**kafka.client_options()})
        ends = [TopicPartition(log.schema.topic, number, OFFSET_END) for number in (0, 1)]
        for future in admin.delete_records(ends).values():
            future.result()
        log.row("u", at(200, 1), {"id": 0, "a": "left", "n": 5}, filled=["a"])
        log.row("u", at(200, 2), {"id": 2, "a": "a2", "n": 2})
        log.reached(at(200, 2))
        time.sleep(1.1)
        target.promise(timedelta(seconds=1))
        assert target.merge().exit_code in {ExitCode.OK, ExitCode.REBUILT}
        assert target.rows() == {
            0: {"id": 0, "a": "left", "n": 5},
            2: {"id": 2, "a": "a2", "n": 2},
        }


@pytest.mark.proof
class TestLakehouse(Exactness):
    """A Delta table; `make test` has most of it in tests/integration/sinks/delta/test_run.py."""

    @pytest.fixture
    def target(self, lakehouse: Lakehouse) -> TargetInTest:
        return LakehouseInTest(lakehouse)


class TestIndexes(Exactness):
    """A search index."""

    @pytest.fixture
    def target(self, indexes: Indexes) -> TargetInTest:
        return IndexInTest(indexes)


@pytest.mark.proof
class TestDetailsOfLakehouse(Details):
    """A Delta table."""

    @pytest.fixture
    def target(self, lakehouse: Lakehouse) -> TargetInTest:
        return LakehouseInTest(lakehouse)


@pytest.mark.proof
class TestDetailsOfIndexes(Details):
    """A search index."""

    @pytest.fixture
    def target(self, indexes: Indexes) -> TargetInTest:
        return IndexInTest(indexes)


@pytest.mark.proof
class TestDictionary(Exactness, Details):
    """The smallest target."""

    @pytest.fixture
    def target(
        self, spark: "SparkSession", kafka: Kafka, topic_prefix: str, tmp_path: Path
    ) -> TargetInTest:
        return MemoryInTest(spark, kafka, topic_prefix, tmp_path)
