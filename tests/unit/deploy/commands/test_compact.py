"""`millrace compact` if a real Debezium captures: Millrace has no log to compact there."""

from typing import Final

from cdc.settings import Settings
from deploy.commands.merge import _indexes, _topics

DEBEZIUM: Final = Settings.model_validate({
    "source": {},
    "capture": {"topic.prefix": "p"},
    "kafka": {"bootstrap.servers": "nowhere:1"},
    "lakehouse": {"path": "/nowhere", "topics_written_by": "debezium"},
    "search": {"url": "http://nowhere:1"},
})  # fmt: skip


def test_topics_and_indexes_of_no_log_are_left_alone() -> None:
    assert [*_topics(DEBEZIUM, True), *_indexes(DEBEZIUM, True)] == []
