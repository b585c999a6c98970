"""Documents that a real OpenSearch refuses: they are dead letters until they are written."""

import pytest

from cdc.errors import SinkError
from deploy.local.opensearch import OpenSearch
from sinks.search.bulk import Action, Counts, RefusalHandler, write
from sinks.search.dead_letters import MADE_MAX, DocumentDeadLetters
from sinks.search.executors import DocumentCompletion
from tests.fixtures.search_tables import Target, delete, upsert

pytestmark = pytest.mark.opensearch

BULK_BYTES = 1 << 16


@pytest.fixture
def target(opensearch: OpenSearch, index_prefix: str) -> Target:
    return Target(opensearch.url, index_prefix)


def apply(target: Target, *actions: Action) -> Counts:
    return write(target.client, target.write_alias, actions, bulk_bytes=BULK_BYTES)


def test_refused_document_becomes_a_dead_letter_until_it_is_written_after_all(
    target: Target,
) -> None:
    prefix, alias = target.settings.index_prefix, target.alias
    dead_letters = DocumentDeadLetters(target.client, prefix, alias, target.index)
    dead_letters.create()
    bad = upsert("bad", 10)._replace(source=b'{"big":{"not":"text"}}')

    def judged(*actions: Action) -> Counts:
        versions = {
            document: dead_letter.version
            for document, dead_letter in dead_letters.by_document().items()
        }
        refusals = RefusalHandler(dead_letters, versions)
        return write(
            target.client, target.write_alias, actions, bulk_bytes=BULK_BYTES, refusals=refusals
        )

    for _ in range(2):  # a repeat makes no second one
        assert judged(upsert("good", 10), bad).refused == 1
        assert list(target.documents()) == ["good"]
        (dead_letter,) = dead_letters.all()
        assert (dead_letter["document"], dead_letter["version"], dead_letter["source"]) == (
            "bad",
            10,
            '{"big":{"not":"text"}}',
        )
        assert "failed to parse field [big]" in dead_letter["reason"]
        assert dead_letters.counts() == {target.alias: 1}
    judged(upsert("bad", 9, '"n":1'))
    assert dead_letters.by_document().keys() == {"bad"}, "an older one doesn't settle it"
    judged(upsert("bad", 20, '"n":2'))
    assert dead_letters.by_document() == {}
    assert target.documents()["bad"]["n"] == 2
    judged(bad._replace(version=30))
    assert judged(delete("bad", 40)).deleted == 1
    assert dead_letters.by_document() == {}
    judged(bad._replace(version=50), bad._replace(id="worse", version=50))
    others = DocumentDeadLetters(target.client, prefix, alias, f"{target.index}0")
    assert others.by_document() == {}, "another index has its own"
    DocumentDeadLetters(target.client, prefix, alias).forget(but_of=target.index)
    assert dead_letters.by_document().keys() == {"bad", "worse"}
    DocumentDeadLetters(target.client, prefix, alias).forget()
    assert dead_letters.by_document() == {}
    many = (bad._replace(id=f"bad {number}", version=50) for number in range(MADE_MAX + 1))
    with pytest.raises(SinkError, match="refused"):
        judged(*many)


def test_dead_letters_that_cannot_be_kept_stop_the_run(target: Target) -> None:
    dead_letters = DocumentDeadLetters(
        target.client, target.settings.index_prefix, target.alias, target.index
    )
    dead_letters.create()
    block = {"index.blocks.write": True}
    target.client.indices.put_settings(index=dead_letters.index, body=block)
    bad = upsert("bad", 10)._replace(source=b'{"big":{"not":"text"}}')
    with pytest.raises(SinkError, match="can't store dead letters"):
        write(
            target.client,
            target.write_alias,
            [bad],
            bulk_bytes=BULK_BYTES,
            refusals=RefusalHandler(dead_letters),
        )
    target.client.indices.put_settings(index=dead_letters.index, body={"index.blocks.write": None})


def test_unchanged_values_are_those_of_the_document_that_was_refused(target: Target) -> None:
    """What is in the index is older than that."""
    dead_letters = DocumentDeadLetters(
        target.client, target.settings.index_prefix, target.alias, target.index
    )
    dead_letters.create()
    apply(target, upsert("a", 10, '"n":1,"big":"old"'))
    bad = upsert("a", 20, '"id":{"x":1},"big":"newer"')
    write(
        target.client,
        target.write_alias,
        [bad],
        bulk_bytes=BULK_BYTES,
        refusals=RefusalHandler(dead_letters),
    )
    assert dead_letters.by_document()["a"].version == 20
    completion = DocumentCompletion(
        target.client, target.write_alias, BULK_BYTES, refused=dead_letters.sources
    )
    apply(target, *completion.fill([upsert("a", 30, '"n":3', ("big",))]))
    assert target.documents()["a"] == {"id": "a", "n": 3, "big": "newer"}
