"""`millrace search`, `rebuild` and `dead-letters search`, typed over an index of four rows."""

import json
from pathlib import Path

import pytest

from cdc.errors import ExitCode
from tests.fixtures.command_line import CommandLine
from tests.fixtures.indexes import ALIAS, Indexes
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import SPARK, HandLog, at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]
NUMBERS_ONLY = {"table": ALIAS, "mapping": {"a": {"type": "integer"}}}


def configured(indexes: Indexes, folder: Path) -> Path:
    """A configuration file that says what the fixture's settings do."""
    assert indexes.settings.search is not None
    search = {"index.prefix": f"{indexes.prefix}-", "indexes": [NUMBERS_ONLY]}
    return RunningPipeline(
        folder,
        {},
        indexes.kafka.client_options(),
        prefix=indexes.prefix,
        search_url=indexes.settings.search.url,
        capture={"slot.name": indexes.settings.capture.slot_name},
        sections={"search": search, "spark": SPARK},
    ).config


def loaded(indexes: Indexes) -> HandLog:
    """Four rows, of which the index refuses two."""
    indexes.define(indexes=[NUMBERS_ONLY])
    log = indexes.log(column("id", "int4", 1), column("a", "text"), column("n", "text"))
    for number, text in enumerate(["10", "20", "no number", "neither"]):
        log.row("r", at(100, 0), {"id": number, "a": text, "n": f"name {number}"})
    log.table(100)
    log.reached(at(100, 0))
    indexes.merge()
    return log


def test_documents_are_searched_and_refusals_are_listed(
    indexes: Indexes, typed: CommandLine, tmp_path: Path
) -> None:
    config = configured(indexes, tmp_path)
    loaded(indexes)
    best = typed(config, "search", ALIAS, "name AND a:>10", "--json")
    assert best.returncode == ExitCode.OK
    (document,) = map(json.loads, best.stdout.splitlines())
    assert (document["_id"], document["a"], document["n"]) == ("1", "20", "name 1")
    table = typed(config, "search", ALIAS, "name", "--limit", "1")
    assert table.returncode == ExitCode.OK
    assert "2 found" in table.stdout
    strange = typed(config, "search", "public.nope", "name")
    assert (strange.returncode, strange.stdout) == (ExitCode.CONFIG, "")
    assert "public.nope is missing" in strange.stderr
    assert refused(config, typed) == {"2", "3"}


@pytest.mark.proof
def test_an_index_is_rebuilt_and_refusals_are_dealt_with(
    indexes: Indexes, typed: CommandLine, tmp_path: Path
) -> None:
    config = configured(indexes, tmp_path)
    log = loaded(indexes)
    old, documents = indexes.index(), indexes.documents()
    rebuilt = typed(config, "rebuild", "search", ALIAS)
    assert rebuilt.returncode == ExitCode.OK, rebuilt.stderr
    assert ALIAS in rebuilt.stdout
    assert indexes.index() != old
    assert indexes.documents() == documents
    unknown = typed(config, "rebuild", "search", "public.nope")
    assert unknown.returncode == ExitCode.CONFIG
    assert "unknown index: public.nope" in unknown.stdout

    assert refused(config, typed) == {"2", "3"}
    shown = typed(config, "dead-letters", "search", ALIAS)
    assert shown.returncode == ExitCode.OK
    assert "failed to parse field" in shown.stdout
    both = typed(config, "dead-letters", "search", "--replay", "--discard")
    assert both.returncode == ExitCode.CONFIG
    malformed = {"properties": {"a": {"type": "integer", "ignore_malformed": True}}}
    log.row("u", at(200, 1), {"id": 2, "a": "30", "n": "name 2"})
    log.reached(at(200, 1))
    indexes.merge()
    assert refused(config, typed) == {"3"}, "the row has got a number by now"
    indexes.client.indices.put_mapping(index=indexes.index(), body=malformed)
    replayed = typed(config, "dead-letters", "search", ALIAS, "--replay")
    assert replayed.returncode == ExitCode.OK, replayed.stderr
    assert refused(config, typed) == set()
    assert set(indexes.documents()) == {"0", "1", "2", "3"}
    assert typed(config, "dead-letters", "search", "--discard").returncode == ExitCode.OK


def refused(config: Path, typed: CommandLine) -> set[str]:
    """The documents that `dead-letters search` lists."""
    listed = typed(config, "dead-letters", "search", "--json")
    assert listed.returncode == ExitCode.OK, listed.stderr
    return {json.loads(line)["document"] for line in listed.stdout.splitlines()}
