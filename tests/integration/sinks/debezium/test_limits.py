"""Limits of a real Debezium's topics → errors that name them, and no wrong rows."""

import hashlib
import shutil
import time
from collections.abc import Iterable

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from cdc.errors import ConfigError, ExitCode, MillraceError
from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.run.options import RunOptions
from sinks.run.summary import RunSummary
from tests.fixtures.debezium_lake import DebeziumLake, event

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TYPES = {"public.t": {"id": "int", "v": "text", "n": "int"}}
COMPACTED = {"cleanup.policy": "compact"}


def row(number: int, text: str = "a") -> dict[str, object]:
    return {"id": number, "v": text, "n": number}


def written(lake: DebeziumLake, numbers: Iterable[int], table: str = "public.t") -> None:
    lake.write((event("u", row(number), lsn=number) for number in numbers), table)


def refused(summary: RunSummary) -> str:
    """Why the only table of a run wasn't applied."""
    (table,) = summary.tables
    assert table.error is not None
    return str(table.error)


def forget(lake: DebeziumLake, offset: int) -> None:
    """Have the topic's records before an offset go, as retention would."""
    admin = AdminClient({**lake.kafka})
    asked = [TopicPartition(f"{lake.prefix}.public.t", 0, offset)]
    for future in admin.delete_records(asked).values():
        future.result(60)


def make_anew(lake: DebeziumLake, table: str = "public.t") -> None:
    """Another topic of the same name."""
    admin, name = AdminClient({**lake.kafka}), f"{lake.prefix}.{table}"
    admin.delete_topics([name])[name].result(60)
    deadline = time.monotonic() + 60
    while name in admin.list_topics(timeout=60).topics and time.monotonic() < deadline:
        time.sleep(0.1)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    # The old partition may still take records, which then go with it.
    while not is_empty(admin, name) and time.monotonic() < deadline:
        time.sleep(0.1)


def add_partitions(lake: DebeziumLake, table: str, count: int) -> None:
    """Have a topic's keys go to so many partitions."""
    admin, name = AdminClient({**lake.kafka}), f"{lake.prefix}.{table}"
    admin.create_partitions([NewPartitions(name, count)])[name].result(60)
    deadline = time.monotonic() + 60
    while len(admin.list_topics(name, 60).topics[name].partitions) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_empty(admin: AdminClient, topic: str) -> bool:
    """Whether the only partition of a topic is there, and has no record."""
    place = TopicPartition(topic, 0)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    try:
        return int(admin.list_offsets({place: latest})[place].result(60).offset) == 0
    except KafkaException:  # no leader yet
        return False


def killed(*_arguments: object, **_options: object) -> None:
    """A commit that never comes."""
    raise KeyboardInterrupt


def widened(lake: DebeziumLake) -> list[tuple[object, ...]]:
    """What a table has whose columns were widened."""
    return sorted(tuple(row) for row in lake.table().select("id", "v", "n").collect())


@pytest.mark.proof
def test_what_topics_must_not_become_is_told_and_others_go_on(lake: DebeziumLake) -> None:
    names = [f"public.{name}" for name in ("anew", "moved", "ended", "compacted", "t")]
    history = {"source": "public.ended", "kind": "history"}
    lake.configure(types=dict.fromkeys(names, TYPES["public.t"]), tables=[history])
    for name in names:
        partitions = 2 if name == "public.ended" else 1
        lake.topic(name, partitions, COMPACTED if name == "public.compacted" else {})
        written(lake, [1], name)

    def merged() -> tuple[RunSummary, dict[str, MillraceError]]:
        summary = lake.merge()
        return summary, {table.name: table.error for table in summary.tables if table.error}

    first, errors = merged()
    assert first.exit_code == ExitCode.TOPIC_MISMATCH
    assert errors.keys() == {"public.compacted"}
    assert "min.compaction.lag.ms" in str(errors["public.compacted"])

    make_anew(lake, "public.anew")
    written(lake, [2, 3, 4], "public.anew")
    add_partitions(lake, "public.moved", 3)
    lake.write([event("t", None, lsn=5, table="ended")], "public.ended")
    written(lake, [2], "public.t")
    _, errors = merged()
    says = {
        "public.anew": "created again",
        "public.compacted": "min.compaction.lag.ms",
        "public.ended": "and so are the rows that it deleted",
        "public.ended_history": "and so are the rows that it deleted",
        "public.moved": "the topic had 1 partitions and now has 3",
    }
    assert errors.keys() == says.keys()
    for name, said in says.items():
        assert said in str(errors[name])
    assert errors["public.anew"].exit_code == ExitCode.LOG_FORGOTTEN
    assert lake.rows("public.anew") == [(1, "a", 1)]
    assert lake.rows("public.t") == [(1, "a", 1), (2, "a", 2)]

    shutil.rmtree(table_path(str(lake.folder), TableName("public", "anew")))
    _, errors = merged()
    assert errors.keys() == says.keys() - {"public.anew"}
    assert lake.rows("public.anew") == [(2, "a", 2), (3, "a", 3), (4, "a", 4)]
    lake.configure(topics_written_by="millrace")
    with pytest.raises(ConfigError, match="was created for topics written by debezium"):
        lake.merge()


@pytest.mark.proof
def test_a_plan_is_not_finished_with_another_topics_records(
    lake: DebeziumLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.configure(types=TYPES)
    lake.topic()
    written(lake, [1])
    with monkeypatch.context() as patched:
        patched.setattr("sinks.delta.target.commit", killed)
        with pytest.raises(KeyboardInterrupt):
            lake.merge()
    make_anew(lake)
    written(lake, [2])
    summary = lake.merge()
    assert "created again" in str(summary.tables[0].error)
    assert lake.rows() == [(2, "a", 2)], "the same run goes on with the new one"


@pytest.mark.proof
def test_a_compacted_topic_that_comes_late_is_rebuilt(
    lake: DebeziumLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.configure(types=TYPES, log={"keep": "1s"})
    lake.topic(config={"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "1000"})
    written(lake, [1, 2])
    assert lake.merge().exit_code == ExitCode.OK
    written(lake, [3])
    forget(lake, 1)
    time.sleep(2)
    summary = lake.merge()
    assert summary.exit_code == ExitCode.REBUILT
    assert lake.rows() == [(2, "a", 2), (3, "a", 3)], "what the topic doesn't have goes"
    written(lake, [4])
    lake.configure(types=TYPES, log={"keep": "1s"})
    with monkeypatch.context() as patched:
        patched.setattr("sinks.delta.target.commit", killed)
        with pytest.raises(KeyboardInterrupt):
            lake.merge()
    forget(lake, 2)
    time.sleep(1.2)
    summary = lake.merge()
    assert summary.exit_code == ExitCode.REBUILT, "also the rest of a run that was killed"
    assert lake.rows() == [(3, "a", 3), (4, "a", 4)]
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_a_table_begins_with_the_first_record_or_with_what_somebody_accepts(
    lake: DebeziumLake,
) -> None:
    lake.configure(types=TYPES)
    lake.topic()
    written(lake, range(4))
    forget(lake, 2)
    summary = lake.merge()
    assert "the topic no longer has its first records" in refused(summary)
    assert summary.exit_code == ExitCode.LOG_FORGOTTEN
    accepted = RunOptions(accepted_gaps=frozenset({"public.t"}))
    assert lake.merge(accepted).exit_code == ExitCode.OK
    assert lake.rows() == [(2, "a", 2), (3, "a", 3)]
    written(lake, [4, 5])
    forget(lake, 5)
    assert "is too late" in refused(lake.merge(accepted))
    assert lake.rows() == [(2, "a", 2), (3, "a", 3)]


@pytest.mark.proof
def test_a_table_that_comes_too_late_begins_with_another_snapshot_as_the_message_says(
    lake: DebeziumLake,
) -> None:
    lake.configure(types=TYPES)
    lake.topic()
    written(lake, range(3))
    assert lake.merge().exit_code == ExitCode.OK
    written(lake, [3, 4])
    forget(lake, 4)
    why = refused(lake.merge())
    for step in ("remove its Delta table", "snapshot", "merge lakehouse --accept-gap public.t"):
        assert step in why
    shutil.rmtree(table_path(str(lake.folder), TableName.parse("public.t")))
    written(lake, [0, 2, 3, 4])
    accepted = RunOptions(accepted_gaps=frozenset({"public.t"}))
    assert lake.merge(accepted).exit_code == ExitCode.OK
    assert lake.rows() == [(number, "a", number) for number in (0, 2, 3, 4)]
    written(lake, [5])
    assert lake.merge().exit_code == ExitCode.OK
    assert lake.rows()[-1] == (5, "a", 5)


@pytest.mark.proof
def test_a_run_may_read_a_part_only(lake: DebeziumLake) -> None:
    lake.configure(types=TYPES)
    lake.topic(partitions=2)
    written(lake, range(20))
    assert lake.merge(RunOptions(records_max=10)).exit_code == ExitCode.OK
    assert abs(lake.table().count() - 10) <= 2
    while lake.merge(RunOptions(records_max=10)).exit_code == ExitCode.OK:
        pass
    assert lake.table().count() == 20


@pytest.mark.proof
def test_columns_are_as_the_derived_table_wants_them(lake: DebeziumLake) -> None:
    wanted = {
        "source": "public.t",
        "exclude": ["secret"],
        "rename": {"n": "number"},
        "mask": {"v": "hash"},
        "types": {"n": "decimal(5,1)"},
        "unfit": {"d": "null"},
    }
    told = {"id": "int", "v": "text", "n": "numeric", "d": "date", "secret": "text"}
    lake.configure(types={"public.t": told}, tables=[wanted], salt="salt")
    lake.topic()
    said = {"id": 1, "v": "x", "n": {"scale": 1, "value": "Dw=="}, "d": 2**31 - 1, "secret": "s"}
    lake.write([event("c", said)])
    assert lake.merge().exit_code == ExitCode.OK
    found = lake.table().collect()[0].asDict()
    assert "secret" not in found
    assert (str(found["number"]), found["d"]) == ("1.5", None)
    assert found["v"] == hashlib.sha256(b"saltx").hexdigest()
    lake.write([event("c", said | {"id": 2, "n": {"scale": 2, "value": "D0I="}})])
    assert "can't hold 39.06" in refused(lake.merge())


@pytest.mark.proof
def test_a_type_that_does_not_fit_fails_the_table_or_its_values(lake: DebeziumLake) -> None:
    lake.configure(types=TYPES)
    lake.topic()
    written(lake, [1])
    assert lake.merge().exit_code == ExitCode.OK
    wider = {"public.t": {**TYPES["public.t"], "n": "bigint"}}
    lake.configure(types=wider)
    lake.write([event("u", {"id": 2, "v": "b", "n": 2**40})])
    assert lake.merge().exit_code == ExitCode.OK
    assert widened(lake) == [(1, "a", 1), (2, "b", 2**40)]
    other = {"public.t": {**TYPES["public.t"], "n": "text"}}
    lake.configure(types=other)
    lake.write([event("u", {"id": 1, "v": "b", "n": "12"})])
    assert "can't hold the old values" in refused(lake.merge())
    lake.configure(types=other, incompatible="cast")
    assert lake.merge().exit_code == ExitCode.OK
    assert widened(lake) == [(1, "b", 12), (2, "b", 2**40)]
    lake.write([event("u", {"id": 1, "v": "b", "n": "no number"})])
    assert "can't hold no number" in refused(lake.merge())
