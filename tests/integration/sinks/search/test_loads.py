"""A new index is loaded next to the serving one, and replaces it when it is complete."""

from typing import Any

import pytest

from cdc.errors import ConfigError, ExitCode, SinkError
from sinks.run.plan import TablePlan
from sinks.search.apply import TableIndexer
from sinks.search.bulk import Counts
from sinks.search.dead_letters import DocumentDeadLetters
from tests.fixtures.few import few
from tests.fixtures.indexes import ALIAS, Indexes, loaded
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]


@pytest.mark.proof
def test_a_column_of_another_type_is_a_new_index_of_all_rows(indexes: Indexes) -> None:
    log = loaded(indexes)
    old = indexes.index()
    columns = (*log.schema.columns[:2], column("n", "text"))
    log.add_schema(table_schema(indexes.prefix, "t", *columns, version=2))
    for number in range(5):  # PostgreSQL has written the table anew, and it was read again
        log.row("u", at(200, number), {"id": number, "a": f"a{number}", "n": f"no {number}"})
    log.reached(at(200, 9))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.index() != old
    assert indexes.documents() == {
        str(number): {"id": number, "a": f"a{number}", "n": f"no {number}"} for number in range(5)
    }
    query = {"query": {"match": {"n": "no"}}}
    answer = indexes.client.search(index=f"{indexes.prefix}-{ALIAS}", body=query)
    assert answer["hits"]["total"]["value"] == 5
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_a_rebuild_goes_on_where_it_was_while_changes_reach_both_indexes(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = loaded(indexes, 20)
    log.row("d", at(150, 1), None, {"id": 19})
    log.tombstone(at(150, 1), {"id": 19})
    log.reached(at(150, 1))
    indexes.merge()
    old, expected = indexes.index(), indexes.documents()
    monkeypatch.setattr("sinks.search.steps.STEP_RECORDS", 15)
    load, begun = TableIndexer.load, list[int]()

    def loaded_step(self: TableIndexer, *arguments: Any) -> Counts:
        """A step, behind which the log goes on: of its rows, and of others' rows."""
        begun.append(sum(arguments[2].start.values()))
        step = len(begun)
        assert indexes.index() == old, "it serves until the new one is complete"
        assert indexes.documents() == expected, "and keeps up"
        if step == 2:
            raise ZeroDivisionError
        counts = load(self, *arguments)
        if step > 3:
            return counts
        for number in range(step, 19, 4):
            log.row("u", at(200 + step, number), {"id": number, "n": -step})  # a is absent
            expected[str(number)]["n"] = -step
        gone = f"{17 - step}"
        del expected[gone]
        log.row("d", at(200 + step, 99), None, {"id": int(gone)})
        log.tombstone(at(200 + step, 99), {"id": int(gone)})
        log.reached(at(200 + step, 99))
        return counts

    monkeypatch.setattr(TableIndexer, "load", loaded_step)
    with pytest.raises(ConfigError, match=r"unknown index: public\.x"):
        indexes.merge(rebuilt=frozenset({"public.x"}))
    with pytest.raises(ZeroDivisionError):
        indexes.merge(rebuilt=frozenset({"public.t"}))
    indexes.merge()
    assert begun[2] == begun[1] > begun[0], "what was loaded isn't loaded again"
    assert begun[3] > begun[2]
    assert any("records are loaded" in line for line in indexes.said)
    assert indexes.index() != old
    assert indexes.documents() == expected
    assert len(indexes.client.indices.get(index=f"{indexes.prefix}-{ALIAS}-*")) == 1


@pytest.mark.proof
def test_a_new_history_takes_the_place_of_what_is_being_loaded(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = loaded(indexes)
    load, steps = TableIndexer.load, list[TablePlan]()

    def dying(self: TableIndexer, *arguments: Any) -> Counts:
        steps.append(arguments[2])
        if len(steps) == 2:
            raise ZeroDivisionError
        return load(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("sinks.search.steps.STEP_RECORDS", 3)
        patch.setattr(TableIndexer, "load", dying)
        with pytest.raises(ZeroDivisionError):
            indexes.merge(rebuilt=frozenset({"public.t"}))
    log.truncate(at(50, 0, epoch=2).just_before())
    log.row("r", at(50, 0, epoch=2), {"id": 1, "a": "other history", "n": 1})
    log.table(50, epoch=2)
    log.reached(at(50, 0, epoch=2))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {"1": {"id": 1, "a": "other history", "n": 1}}
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_a_first_load_goes_on_where_it_was(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = indexes.log(column("id", "int4", 1), column("a", "text"), column("n", "int8"))
    for number in range(20):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}", "n": number})
    log.table(100)
    log.reached(at(100, 0))
    monkeypatch.setattr("sinks.search.steps.STEP_RECORDS", 8)
    load, written = TableIndexer.load, list[TablePlan]()

    def dying(self: TableIndexer, *arguments: Any) -> Counts:
        written.append(arguments[2])
        if len(written) == 2:
            raise ZeroDivisionError
        return load(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TableIndexer, "load", dying)
        with pytest.raises(ZeroDivisionError):
            indexes.merge()
        assert not indexes.client.indices.exists_alias(name=f"{indexes.prefix}-{ALIAS}")
        log.row("u", at(200, 1), {"id": 3, "n": -3})
        log.reached(at(200, 1))
        assert indexes.merge().exit_code == ExitCode.OK
    assert written[2].start == written[1].start != written[0].start
    assert any("records are loaded" in line for line in indexes.said)
    assert indexes.documents() == {
        str(n): {"id": n, "a": f"a{n}", "n": -3 if n == 3 else n} for n in range(20)
    }


def test_what_the_user_says_of_an_index_is_a_new_index(indexes: Indexes) -> None:
    log = loaded(indexes)
    old = indexes.index()
    analysis = {"analyzer": {"own": {"type": "custom", "tokenizer": "keyword"}}}
    said = {
        "table": "public.t",
        "mapping": {"a": {"type": "text", "analyzer": "own"}},
        "settings": {"index": {"analysis": analysis, "number_of_shards": 2}},
    }
    indexes.define(indexes=[{"table": "public.t", "mapping": {"x": {"type": "keyword"}}}])
    assert "the document has no field x" in str(indexes.merge().tables[0].error)
    assert indexes.index() == old
    indexes.define(indexes=[said])
    assert indexes.merge().exit_code in {ExitCode.OK, ExitCode.NOTHING_TO_DO}
    new = indexes.index()
    assert new != old
    log.row("u", at(200, 1), {"id": 3, "a": "two words", "n": 3})
    log.reached(at(200, 1))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.index() == new
    query = {"query": {"match": {"a": "two words"}}}
    answer = indexes.client.search(index=f"{indexes.prefix}-{ALIAS}", body=query)
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["3"]
    settings = indexes.client.indices.get_settings(index=new)[new]["settings"]["index"]
    assert settings["number_of_shards"] == "2"
    assert settings["auto_expand_replicas"] == "0-1"


@pytest.mark.proof
def test_documents_that_were_refused_are_made_again(indexes: Indexes) -> None:
    """As the rows are by now, and not as they were refused."""
    strict = {"table": "public.t", "mapping": {"a": {"type": "integer"}}}
    indexes.define(indexes=[strict])
    log = indexes.log(column("id", "int4", 1), column("a", "text"), column("n", "int8"))
    for number, text in enumerate(["1", "two", "three", "four"]):
        log.row("r", at(100, 0), {"id": number, "a": text, "n": number})
    log.table(100)
    log.reached(at(100, 0))
    assert indexes.merge().exit_code == ExitCode.OK
    assert set(indexes.documents()) == {"0"}
    for number, (_, text) in enumerate([("two", "2"), ("three", "also no number")], 1):
        log.row("u", at(200, number), {"id": number, "a": text, "n": number})
    log.reached(at(200, 2))
    indexes.merge()
    dead_letters = DocumentDeadLetters(indexes.client, f"{indexes.prefix}-", None)
    assert {dead_letter["document"] for dead_letter in dead_letters.all()} == {"2", "3"}
    # Somebody has the field take what isn't a number.
    index = indexes.index()
    indexes.client.indices.put_mapping(
        index=index, body={"properties": {"a": {"type": "integer", "ignore_malformed": True}}}
    )
    (result,) = indexes.merge(replayed=frozenset({"public.t"})).tables
    assert (result.events, result.updated) == (2, 2)
    assert dead_letters.by_document() == {}
    assert indexes.documents()["2"]["a"] == "also no number"
    assert set(indexes.documents()) == {"0", "1", "2", "3"}

    # What was refused before a TRUNCATE doesn't come back.
    indexes.client.indices.put_mapping(
        index=index, body={"properties": {"a": {"type": "integer", "ignore_malformed": False}}}
    )
    log.row("c", at(300, 1), {"id": 7, "a": "seven", "n": 7})
    log.reached(at(300, 1))
    indexes.merge()
    assert dead_letters.by_document().keys() == {"7"}
    log.truncate(at(400, 1))
    log.row("c", at(400, 2), {"id": 8, "a": "8", "n": 8})
    log.reached(at(400, 2))
    indexes.merge()
    indexes.merge(replayed=frozenset({"public.t"}))
    assert set(indexes.documents()) == {"8"}
    assert dead_letters.by_document() == {}


@pytest.mark.proof
def test_a_bounded_run_leaves_the_rest_to_the_next(indexes: Indexes) -> None:
    log = loaded(indexes)
    for number in range(40):
        log.row("u", at(200 + number, 1), {"id": number % 5, "n": -number})
        log.reached(at(200 + number, 1))
    runs = 0
    while indexes.merge(records_max=15).exit_code == ExitCode.OK:
        runs += 1
    assert runs > 1
    assert {document["n"] for document in indexes.documents().values()} == {-35, -36, -37, -38, -39}


@pytest.mark.proof
def test_an_index_that_serves_before_it_is_noted_is_not_loaded_again(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = loaded(indexes)
    with monkeypatch.context() as patch:
        patch.setattr(DocumentDeadLetters, "forget", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            indexes.merge(rebuilt=frozenset({"public.t"}))
    new = indexes.index()
    log.row("d", at(200), None, {"id": 0})
    log.reached(at(200))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.index() == new
    assert set(indexes.documents()) == {"1", "2", "3", "4"}
    indexes.client.indices.delete(index=new)
    assert indexes.merge().tables[0].inserted == 4


@pytest.mark.proof
def test_an_index_that_is_gone_while_it_is_loaded_is_begun_again(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(indexes)
    before = indexes.documents()
    with monkeypatch.context() as patch:
        patch.setattr(TableIndexer, "load", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            indexes.merge(rebuilt=frozenset({"public.t"}))
    (record,) = indexes.ledger.tables(["public.t"]).values()
    assert record.loading is not None
    indexes.client.indices.delete(index=record.loading.into.index)
    assert indexes.merge().exit_code == ExitCode.OK
    assert any("is missing: a new index" in line for line in indexes.said)
    assert record.serves is not None
    assert indexes.index() not in {record.serves.index, record.loading.into.index}
    assert indexes.documents() == before


@pytest.mark.proof
@pytest.mark.parametrize("steps", ["before there is a plan", "after the census", "one by one"])
def test_rows_of_a_snapshot_are_what_became_of_them(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    if steps == "before there is a plan":
        monkeypatch.setattr("sinks.log.changes.RECORDS_FEW", 1)
    if steps == "one by one":
        monkeypatch.setattr("sinks.search.steps.STEP_RECORDS", 3)
    log = indexes.log(column("id", "int4", 1), column("a", "text"), column("n", "int8"))
    for number in range(8):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}", "n": number})
    log.row("d", at(110), None, {"id": 0})
    log.tombstone(at(110), {"id": 0})
    log.row("c", at(120), {"id": 0, "a": "another", "n": 0})
    log.row("d", at(130, 1), None, {"id": 1})
    log.tombstone(at(130, 1), {"id": 1})
    log.row("u", at(130, 2), {"id": 2, "a": "first", "n": 2})
    log.row("u", at(130, 3), {"id": 2, "a": "second", "n": 2})
    log.row("u", at(130, 4), {"id": 3, "n": 33})  # a is absent
    log.row("u", at(130, 5), {"id": 4, "a": "read too late", "n": 44}, filled=["a"])
    log.row("c", at(130, 6), {"id": 9, "a": "new", "n": 9})
    log.row("r", at(140, 0), {"id": 5, "a": "read again", "n": 5})
    log.row("u", at(300), {"id": 6, "a": "above the cut", "n": 6})
    log.table(100)
    log.reached(at(140, 0))
    assert indexes.merge().exit_code == ExitCode.OK
    expected = {
        "0": {"id": 0, "a": "another", "n": 0},
        "2": {"id": 2, "a": "second", "n": 2},
        "3": {"id": 3, "a": "a3", "n": 33},
        "4": {"id": 4, "a": "a4", "n": 44},
        "5": {"id": 5, "a": "read again", "n": 5},
        "6": {"id": 6, "a": "a6", "n": 6},
        "7": {"id": 7, "a": "a7", "n": 7},
        "9": {"id": 9, "a": "new", "n": 9},
    }
    documents = indexes.documents()
    if steps == "one by one":  # what an earlier step stored may be older than a filled value
        expected["4"]["a"] = documents["4"]["a"]
    assert documents == expected

    log.reached(at(300))
    assert indexes.merge().tables[0].updated == 1
    assert indexes.documents() == {**expected, "6": {"id": 6, "a": "above the cut", "n": 6}}


@pytest.mark.proof
def test_what_a_load_cant_begin_with_takes_the_ordinary_way(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.log.changes.RECORDS_FEW", 1)
    emptied = indexes.log(column("id", "int4", 1), table="emptied")
    broken = emptied.beside(table_schema(indexes.prefix, "broken", *emptied.schema.columns))
    whole = emptied.beside(table_schema(indexes.prefix, "whole", *emptied.schema.columns))
    for number in range(3):
        for log in (emptied, broken, whole):
            log.row("r", at(100, 0), {"id": number})
    emptied.truncate(at(110))
    emptied.row("c", at(120), {"id": 7})
    broken.row("r", at(100, 0), {"id": "no number"})
    for log in (emptied, broken, whole):
        log.table(100)
    emptied.reached(at(120))
    tables = {table.name: table for table in indexes.merge().tables}
    assert isinstance(tables["public.broken"].error, SinkError)
    assert {name for name, table in tables.items() if table.error is None} == {
        "public.emptied",
        "public.whole",
    }
    counts = {
        name: indexes.client.count(index=f"{indexes.prefix}-public.{name}")["count"]
        for name in ("emptied", "whole")
    }
    assert counts == {"emptied": 1, "whole": 3}


@pytest.mark.proof
@pytest.mark.parametrize("records_few", few([1, 100], 1))
def test_rows_that_were_mended_or_are_gone_by_now_are_not_refused(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch, records_few: int
) -> None:
    monkeypatch.setattr("sinks.log.changes.RECORDS_FEW", records_few)
    strict = {"table": "public.t", "mapping": {"a": {"type": "integer"}}}
    indexes.define(indexes=[strict], **{"refused.documents": "fail"})
    log = indexes.log(column("id", "int4", 1), column("a", "text"))
    for number in range(6):
        log.row("r", at(100, 0), {"id": number, "a": "none" if number < 2 else f"{number}"})
    log.row("u", at(200, 1), {"id": 0, "a": "0"})
    log.row("d", at(200, 2), None, {"id": 1})
    log.table(100)
    log.reached(at(200, 2))
    done = indexes.merge()
    assert (done.exit_code, done.tables[0].inserted) == (ExitCode.OK, 5)
    assert indexes.documents() == {str(n): {"id": n, "a": str(n)} for n in (0, 2, 3, 4, 5)}


@pytest.mark.proof
def test_a_table_whose_key_has_changed_stops_no_other(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.log.changes.RECORDS_FEW", 1)
    log = indexes.log(column("id", "int4", 1), column("a", "int4"))
    other = log.beside(table_schema(indexes.prefix, "other", column("id", "int4", 1)))
    log.row("r", at(100, 0), {"id": 1, "a": 1})
    other.row("r", at(100, 0), {"id": 1})
    columns = (column("id", "int4", 1), column("a", "int4", 2))
    log.add_schema(table_schema(indexes.prefix, "t", *columns, version=2))
    log.row("u", at(200), {"id": 1, "a": 2})
    for writer in (log, other):
        writer.table(100)
    log.reached(at(200))
    tables = {table.name: table.error for table in indexes.merge().tables}
    assert isinstance(tables["public.t"], SinkError)
    assert tables["public.other"] is None
