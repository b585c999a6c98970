"""The source's side of a verify: what it asks of the source, and what one table's trouble is."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from cdc.settings import Settings
from compaction.verify.instant import SourceInstant, source_at_instant
from compaction.verify.source import described_sources
from snapshots import reader
from tests.fixtures.source import Conninfo, capture, run, session

pytestmark = pytest.mark.postgres


def settings_of(database: Conninfo) -> Settings:
    made = Settings(
        source=dict(database),
        capture={"topic.prefix": "t"},
        kafka={"bootstrap.servers": "nowhere"},
    )
    return made.model_copy(update={"capture": capture(database)})


@contextmanager
def instant_of(database: Conninfo) -> Iterator[tuple[Settings, SourceInstant]]:
    settings = settings_of(database)
    with source_at_instant(settings, 30) as instant:
        yield settings, instant


def test_a_table_that_is_locked_is_the_only_one_that_cannot_be_described(
    database: Conninfo,
) -> None:
    run(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"))
    with (
        patch.object(reader, "_LOCK_TIMEOUT", "200ms"),
        instant_of(database) as (settings, instant),
        session(database) as other,
    ):
        other.execute("BEGIN; LOCK TABLE public.b, public.c")
        names = {"public.a", "public.b"}
        described, refused = described_sources(instant, settings.capture, names)
        assert described.keys() == {"public.a"}
        assert refused.keys() == {"public.b"}
        other.execute("ROLLBACK")
        described, refused = described_sources(instant, settings.capture, names)
        assert described.keys() == names, "the instant's transaction goes on"
        assert not refused
