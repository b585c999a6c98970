"""The topics' promises, and a table's last complete read -> whether the table can continue."""

import time
from datetime import timedelta
from typing import Any, NoReturn, cast

import pytest

from cdc.errors import LogForgottenError, TopicMismatchError
from cdc.log.offsets import LogState, Offsets
from cdc.settings import Settings
from sinks.debezium.log import BrokerTopic, TopicLog, bounded_ends
from sinks.debezium.topics import NOWHERE, DebeziumTopics
from sinks.delta.target import LakehouseTarget
from sinks.run.options import RunContext, RunOptions
from sinks.run.plan import TablePlan
from sinks.run.retained import retained_tables
from sinks.run.summary import LastCheck
from sinks.run.topics import ExaminedTables
from tests.fixtures.made_plans import NAME, TOPIC, table_plan
from tests.fixtures.made_states import streaming, table_state

KEEP = timedelta(hours=1)
NOW_MS = int(time.time() * 1000)


class MadeLog:
    """A log whose records are all older than whatever is asked for."""

    def forgotten(self, offsets: Offsets, _keep: timedelta) -> Offsets:
        return {
            topic: {number: offset + 1 for number, offset in partitions.items()}
            for topic, partitions in offsets.items()
        }


def retained(
    table: TablePlan, promised: timedelta | None, *, begins: int = 0, accepted: bool = False
) -> ExaminedTables:
    """What becomes of a table, of a topic that has 20 records."""
    progress = streaming(NOWHERE)
    cleanup = "delete" if promised is None else "compact"
    states = {str(NAME): table_state(NAME, topic=TOPIC, cleanup=cleanup)}
    state = LogState(progress, states, {}, {TOPIC: {0: begins}}, {TOPIC: {0: 20}})
    settings = Settings.model_validate(
        {
            "preset": "debezium",
            "source": {},
            "capture": {"topic.prefix": "p"},
            "kafka": {"bootstrap.servers": "nowhere:1"},
            "log": {"keep": "1h"},
            "lakehouse": {"path": "nowhere", "topics_written_by": "debezium"},
        }
    )
    assert settings.lakehouse is not None
    options = RunOptions(accepted_gaps=frozenset({str(NAME)} if accepted else ()))
    context = RunContext(settings, no_session, print, options)
    topics = DebeziumTopics(context, settings.lakehouse)
    topics._log = cast("TopicLog", MadeLog())
    topics._topics = {str(NAME): BrokerTopic("id", 1, promised)}
    topics._ends = state.ends
    target = LakehouseTarget(context, settings.lakehouse)
    return retained_tables(topics, target, {str(NAME): table}, state, KEEP, LastCheck())


def no_session(_records: int = 0) -> NoReturn:
    raise AssertionError("nothing here needs Spark")


def applied(**more: Any) -> TablePlan:
    return table_plan(**{"base": 1, "start": {0: 5}, "fresh_ms": NOW_MS, **more})


def test_a_table_whose_delta_table_was_removed_needs_all_records_though_there_are_none() -> None:
    nothing = table_plan(start={0: 9})
    assert isinstance(retained(nothing, None, begins=9).refused[str(NAME)], LogForgottenError)
    assert retained(nothing, None, begins=9, accepted=True).refused == {}
    assert retained(table_plan(end={0: 0}), None).refused == {}, "there never were any"


def test_a_topic_that_was_compacted_too_early_is_read_anew_once_it_promises_enough() -> None:
    early = retained(applied(), KEEP / 2)
    assert isinstance(early.refused[str(NAME)], TopicMismatchError)
    left = early.tables[str(NAME)]
    assert (left.end, left.fresh_ms) == ({0: 5}, 0)
    mended = retained(left.model_copy(update={"end": {0: 20}}), KEEP)
    rebuilt = mended.tables[str(NAME)]
    assert (rebuilt.start, rebuilt.end, rebuilt.rebuilds) == ({0: 0}, {0: 20}, True)
    never_refused = retained(applied(), KEEP).tables[str(NAME)]
    assert not never_refused.rebuilds
    history = left.model_copy(update={"end": {0: 20}, "kind": "history"})
    assert isinstance(retained(history, KEEP).refused[str(NAME)], LogForgottenError)


def test_a_rebuild_reads_the_whole_topic_though_a_run_reads_a_part() -> None:
    expired = retained(applied(fresh_ms=1), KEEP)
    assert expired.tables[str(NAME)].end == {0: 20}


@pytest.mark.parametrize("table", [table_plan(), applied(lacks="now")])
def test_a_compacted_topic_is_read_at_once_where_a_table_begins(table: TablePlan) -> None:
    assert bounded_ends([table], {TOPIC}, 2) == {}
    assert bounded_ends([table], (), 2)[TOPIC][0] == table.start[0] + 2
    assert bounded_ends([applied()], {TOPIC}, 2) == {TOPIC: {0: 7}}, "what came later is young"
