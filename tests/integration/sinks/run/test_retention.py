"""Runs later than ``log.keep``: the log was compacted, down to no tombstone."""

import itertools
import time
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType as Operation
from confluent_kafka.admin._config import ConfigEntry, ConfigResource

from cdc.errors import ExitCode
from sinks.changes.names import END, OP, POSITION
from sinks.delta import commit, target
from sinks.delta.cuts import cuts
from sinks.delta.table import DerivedDeltaTable
from sinks.run.engine import Run
from sinks.run.options import RunOptions
from sinks.run.plans import lakehouse_plans
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column
from tests.integration.sinks.log.test_claims import consumed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
COMPACTING = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "200",
    "max.compaction.lag.ms": "1000",
}
FILLER = 100


def compact(lakehouse: Lakehouse, log: HandLog, lsn: int) -> int:
    """Have the broker compact the topic until key 2 is nowhere; the LSN that the log is at then."""
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        log.schema.topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=Operation.SET)
            for name, value in COMPACTING.items()
        ],
    )
    admin = AdminClient({**lakehouse.kafka.client_options()})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    topic = log.schema.topic
    deadline = time.monotonic() + 60
    for number in itertools.count(lsn):
        # A segment is closed by the record that comes after it, in each partition.
        for key in range(FILLER, FILLER + 8):
            log.row("u", at(number), {"id": key, "a": "filler", "n": 0})
        log.reached(at(number))
        keys = [message.key() for message in consumed(lakehouse.kafka, topic, (0, 1))]
        if b'{"id":2}' not in keys and keys.count(b'{"id":1}') == 1:
            return number
        assert time.monotonic() < deadline, keys
        time.sleep(0.3)
    raise AssertionError("unreachable")


def begun(lakehouse: Lakehouse, **more: Any) -> HandLog:
    """A table of three rows, merged; and changes of it that nobody has applied."""
    lakehouse.configure(**more)
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"), column("n", "int4"))
    for key in (1, 2, 3):
        log.row("r", at(10, 0), {"id": key, "a": f"a{key}", "n": 0})
    for key in range(FILLER, FILLER + 8):
        log.row("r", at(10, 0), {"id": key, "a": "filler", "n": 0})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    return log


def change(log: HandLog) -> None:
    """What the log forgets: key 2 is nowhere then, and of key 1 there is one record."""
    log.row("u", at(20), {"id": 1, "a": "changed", "n": 1})
    log.row("u", at(21), {"id": 1, "a": "changed", "n": 2}, filled=["a"])
    log.row("d", at(22), None, {"id": 2})
    log.tombstone(at(22), {"id": 2})
    log.reached(at(22))


def own(lakehouse: Lakehouse, name: str, *names: str) -> list[tuple[Any, ...]]:
    found = lakehouse.read(name, "id", *names)
    return sorted((tuple(row) for id_, *row in found if id_ is None or id_ < FILLER), key=str)


def forget(lakehouse: Lakehouse, log: HandLog, *partitions: int) -> None:
    """Have the broker remove all that the topic has, as compaction and retention do in time.

    Or what some partitions of it have.
    """
    admin = AdminClient({**lakehouse.kafka.client_options()})
    numbers = partitions or (0, 1)
    ends = [TopicPartition(log.schema.topic, number, OFFSET_END) for number in numbers]
    for future in admin.delete_records(ends).values():
        future.result()


def test_a_run_that_is_late_takes_what_the_log_has_and_a_history_waits(
    lakehouse: Lakehouse,
) -> None:
    log = begun(lakehouse, kinds=["current", "history"])
    forget(lakehouse, log)  # with the delete and the tombstone of key 2, too
    log.row("u", at(20), {"id": 1, "a": "changed", "n": 2}, filled=["a"])
    log.row("u", at(20, 2), {"id": 3, "a": "a3", "n": 0})
    log.reached(at(20, 2))
    time.sleep(1.1)
    lakehouse.promise(timedelta(seconds=1))
    summary = lakehouse.merge()
    assert summary.exit_code == ExitCode.LOG_FORGOTTEN
    errors = {table.name: table.error for table in summary.tables}
    assert errors["public.t"] is None
    assert own(lakehouse, "public.t", "id", "a", "n") == [(1, "changed", 2), (3, "a3", 0)]
    assert "--accept-gap public.t_history" in str(errors["public.t_history"])
    assert len(own(lakehouse, "public.t_history", "id")) == 3, "nothing was changed"


@pytest.mark.proof
def test_a_table_that_was_refused_is_at_no_cut_though_its_run_died(lakehouse: Lakehouse) -> None:
    log = begun(lakehouse, kinds=["current", "history"])
    forget(lakehouse, log)
    log.row("u", at(20), {"id": 1, "a": "changed", "n": 2}, filled=["a"])
    log.reached(at(20))
    time.sleep(1.1)
    lakehouse.promise(timedelta(seconds=1))
    with (
        patch.object(Run, "_apply", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        lakehouse.merge()
    lakehouse.promise(timedelta(days=1))
    assert lakehouse.merge().exit_code == ExitCode.REBUILT, "what has died is finished"
    plans = lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark)
    first, died, *_ = cuts(plans)
    assert first.versions.keys() == {"public.t", "public.t_history"}
    assert died.versions.keys() == {"public.t"}


@pytest.mark.proof
def test_current_rows_are_rebuilt_and_a_history_waits_until_the_gap_is_accepted(
    lakehouse: Lakehouse,
) -> None:
    log = begun(lakehouse, kinds=["current", "history", "changes"])
    log.row("u", at(15), {"id": 1, "a": "a1", "n": 0})
    log.reached(at(15))
    lakehouse.merge()
    change(log)
    reached = compact(lakehouse, log, 30)
    time.sleep(1.1)
    lakehouse.promise(timedelta(seconds=1))
    summary = lakehouse.merge()
    errors = {table.name: table.error for table in summary.tables}
    assert summary.exit_code == ExitCode.LOG_FORGOTTEN
    assert errors["public.t"] is None
    rows = [(1, "changed", 2), (3, "a3", 0)]
    assert own(lakehouse, "public.t", "id", "a", "n") == rows
    for name, rows_before in (("public.t_history", 3), ("public.t_changes", 4)):
        assert f"--accept-gap {name}" in str(errors[name])
        assert len(own(lakehouse, name, "id")) == rows_before, "nothing was changed"

    time.sleep(1.1)
    accepted = RunOptions(accepted_gaps=frozenset({"public.t_history", "public.t_changes"}))
    summary = lakehouse.merge(accepted)
    assert [str(table.error) for table in summary.tables if table.error] == []
    begin, change_at = str(at(10, 0)), str(at(21))
    assert own(lakehouse, "public.t_history", "id", "a", "n", POSITION, END) == [
        (1, "a1", 0, begin, change_at),
        (1, "changed", 2, change_at, None),
        (2, "a2", 0, begin, str(at(15))),  # it went away behind that
        (3, "a3", 0, begin, None),
    ]
    archived = own(lakehouse, "public.t_changes", OP, POSITION, END, "id")
    assert ("gap", str(at(15)), str(at(reached)), None) in archived
    assert ("u", change_at, None, 1) in archived
    log.row("c", at(reached + 1), {"id": 4, "a": "a4", "n": 0})
    log.reached(at(reached + 1))
    assert lakehouse.merge().exit_code == ExitCode.OK, "they go on"
    assert (4, "a4", 0) in own(lakehouse, "public.t_history", "id", "a", "n")


@pytest.mark.proof
def test_a_history_that_is_wanted_later_comes_from_the_archive(lakehouse: Lakehouse) -> None:
    log = begun(lakehouse, kinds=["changes"])
    change(log)
    lakehouse.merge()
    log.truncate(at(25))
    log.row("c", at(26), {"id": 5, "a": "a5", "n": 0})
    log.reached(at(26))
    lakehouse.merge()
    reached = compact(lakehouse, log, 30)
    log.row("u", at(reached + 1), {"id": 5, "n": 1})
    log.reached(at(reached + 1))
    lakehouse.configure(kinds=["changes", "history"])
    summary = lakehouse.merge()
    assert [str(table.error) for table in summary.tables if table.error] == []
    begin = str(at(10, 0))
    assert own(lakehouse, "public.t_history", "id", "a", "n", POSITION, END) == [
        (1, "a1", 0, begin, str(at(20))),
        (1, "changed", 1, str(at(20)), str(at(21))),
        (1, "changed", 2, str(at(21)), str(at(25))),
        (2, "a2", 0, begin, str(at(22))),
        (3, "a3", 0, begin, str(at(25))),
        (5, "a5", 0, str(at(26)), str(at(reached + 1))),
        (5, "a5", 1, str(at(reached + 1)), None),
    ]


@pytest.mark.proof
def test_a_history_goes_behind_the_archive_once_though_the_first_run_of_both_died(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(lakehouse, kinds=["changes"])
    log.row("u", at(20), {"id": 1, "a": "changed", "n": 1})
    log.row("u", at(30), {"id": 1, "a": "changed", "n": 2})  # read, and above the cut
    log.reached(at(20))
    lakehouse.merge()
    log.row("d", at(31), None, {"id": 2})
    log.tombstone(at(31), {"id": 2})
    log.reached(at(31))
    real = commit.commit

    def dies_but_for_the_archive(of: DerivedDeltaTable, *rest: Any, **options: Any) -> Any:
        if of.name.endswith("_history"):
            raise KeyboardInterrupt
        return real(of, *rest, **options)

    lakehouse.configure(kinds=["changes", "history"])
    with monkeypatch.context() as patched:
        patched.setattr(target, "commit", dies_but_for_the_archive)
        with pytest.raises(KeyboardInterrupt):
            lakehouse.merge()
    archived = own(lakehouse, "public.t_changes", OP, POSITION, "id")
    assert ("u", str(at(30)), 1) in archived, "before the history has read the archive"
    assert lakehouse.merge().exit_code == ExitCode.OK
    begin = str(at(10, 0))
    assert own(lakehouse, "public.t_history", "id", "a", "n", POSITION, END) == [
        (1, "a1", 0, begin, str(at(20))),
        (1, "changed", 1, str(at(20)), str(at(30))),
        (1, "changed", 2, str(at(30)), None),
        (2, "a2", 0, begin, str(at(31))),
        (3, "a3", 0, begin, None),
    ]
    assert own(lakehouse, "public.t_changes", OP, POSITION, "id") == archived


def offsets_of(lakehouse: Lakehouse, name: str) -> dict[int, int]:
    """Up to where a table has its topic."""
    last = lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark).last()
    assert last is not None
    return last.all_tables[name].start


def read_again(log: HandLog, lsn: int, *keys: int) -> None:
    """What `millrace snapshot --reset` writes: an end of all rows, and those that there are."""
    log.truncate(at(lsn, 0))
    for key in keys:
        log.row("r", at(lsn), {"id": key, "a": f"a{key}", "n": lsn})
    log.table(lsn, cleanup="delete")
    log.reached(at(lsn))


@pytest.mark.proof
def test_a_topic_that_isnt_compacted_needs_a_whole_read_which_no_partition_has_lost(
    lakehouse: Lakehouse,
) -> None:
    """Of a table with a history, which waits for its gap to be accepted as well."""
    log = begun(lakehouse, kinds=["current", "history"])
    log.table(10, cleanup="delete")
    change(log)
    forget(lakehouse, log)
    accepted = RunOptions(accepted_gaps=frozenset({"public.t_history"}))
    errors = {table.name: str(table.error) for table in lakehouse.merge(accepted).tables}
    for error in errors.values():
        assert "`millrace snapshot --reset public.t`" in error
    stood = own(lakehouse, "public.t_history", "id", END)
    reached = offsets_of(lakehouse, "public.t_history")
    read_again(log, 30, 1, 3, 4)
    forget(lakehouse, log, 1)
    log.row("c", at(40), {"id": 5, "a": "a5", "n": 40})
    log.reached(at(40))
    bounded = RunOptions(accepted_gaps=accepted.accepted_gaps, records_max=2)
    for options in (bounded, accepted, accepted):
        summary = lakehouse.merge(options)
        assert summary.exit_code == ExitCode.LOG_FORGOTTEN
        assert own(lakehouse, "public.t", "id") == [(1,), (2,), (3,)]
        assert own(lakehouse, "public.t_history", "id", END) == stood
        assert offsets_of(lakehouse, "public.t_history") == reached
    assert "`millrace snapshot --reset public.t`" in str(summary.tables[0].error)

    read_again(log, 50, 1, 3, 4, 5)
    summary = lakehouse.merge(accepted)
    assert summary.exit_code == ExitCode.REBUILT
    ids = [(1,), (3,), (4,), (5,)]
    assert own(lakehouse, "public.t", "id") == ids
    history = own(lakehouse, "public.t_history", "id", POSITION, END)
    assert [(id_,) for id_, _, end in history if end is None] == ids
    assert all(begun == str(at(50)) for _, begun, end in history if end is None)
    log.row("u", at(60), {"id": 5, "a": "a5", "n": 60})
    log.reached(at(60))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert own(lakehouse, "public.t", "id", "n")[-1] == (5, 60)


@pytest.mark.proof
def test_a_new_table_begins_with_rows_that_were_read_again(lakehouse: Lakehouse) -> None:
    log = begun(lakehouse, kinds=["changes"])
    forget(lakehouse, log)
    log.table(10, cleanup="delete")
    log.row("u", at(20), {"id": 1, "a": "changed", "n": 1})
    log.reached(at(20))
    lakehouse.configure(kinds=["current"])
    (refused,) = lakehouse.merge().tables
    assert "`millrace snapshot --reset public.t`" in str(refused.error)
    assert "Or `millrace merge lakehouse --accept-gap public.t`" in str(refused.error)
    log.truncate(at(30, 0))
    log.row("r", at(30), {"id": 1, "a": "changed", "n": 1})
    log.table(30, cleanup="delete", was_whole=True)
    log.reached(at(30))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert own(lakehouse, "public.t", "id", "a") == [(1, "changed")]
