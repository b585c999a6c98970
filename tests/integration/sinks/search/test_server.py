"""A real OpenSearch, or none → the error if it can't be used, and its new indexes."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opensearchpy import OpenSearch as Client

from cdc.errors import ConfigError, ExitCode, SinkError, SinkUnreachableError
from deploy.local.opensearch import OpenSearch
from deploy.local.processes import reserve_port
from sinks.search.bulk import write
from sinks.search.client import check, connect, insist, search
from sinks.search.documents import mapping
from sinks.search.indexes import Generation, TableIndex
from tests.fixtures.search_tables import (
    TABLE,
    Target,
    position,
    schema,
    settings,
    upsert,
)

pytestmark = pytest.mark.opensearch


@pytest.fixture
def target(opensearch: OpenSearch, index_prefix: str) -> Target:
    return Target(opensearch.url, index_prefix)


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """Servers that answer every GET with one status, type and body."""
    made: list[ThreadingHTTPServer] = []

    def make(status: int, body: str, kind: str = "application/json") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        made.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=made[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{made[-1].server_port}"

    yield make
    for server in made:
        server.shutdown()
        server.server_close()


def failure(url: str, **more: Any) -> SinkError:
    chosen = settings(url, **more)
    with pytest.raises(SinkError) as raised:
        check(connect(chosen), chosen)
    return raised.value


def test_server_that_answers_is_named(opensearch: OpenSearch) -> None:
    chosen = settings(opensearch.url)
    version = {"2": "2.19.1", "3": "3.8.0"}[opensearch.release]
    assert check(connect(chosen), chosen) == f"opensearch {version}"


def test_nobody_answers() -> None:
    error = failure(f"http://user:s3cret@127.0.0.1:{reserve_port()}")
    assert isinstance(error, SinkUnreachableError)
    assert error.exit_code == ExitCode.SINK_UNREACHABLE
    assert "s3cret" not in str(error)
    assert "url in [search]" in error.remedy


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_password_is_said_and_not_shown(answering: Callable[..., str], status: int) -> None:
    url = answering(status, '{"error":{"type":"security_exception","reason":"missing"}}')
    error = failure(url, username="u", password="s3cret")
    assert error.exit_code == ExitCode.SINK
    assert "password" in error.remedy
    assert "s3cret" not in str(error)


@pytest.mark.parametrize(
    ("body", "kind"),
    [("<html>Welcome</html>", "text/html"), ('{"hello":1}', "application/json"), ("[]", "text/x")],
)
def test_something_else_answers(answering: Callable[..., str], body: str, kind: str) -> None:
    assert "isn't OpenSearch or Elasticsearch" in str(failure(answering(200, body, kind)))


def test_server_without_tls_at_an_https_url(opensearch: OpenSearch) -> None:
    error = failure(opensearch.url.replace("http:", "https:"))
    assert isinstance(error, SinkUnreachableError)
    assert "ca_certs" in error.remedy


def test_library_failures_have_a_place_and_no_traceback(target: Target) -> None:
    with pytest.raises(SinkError, match="no such index") as raised:
        insist(lambda: target.client.search(index="no-such-index"), "index x")
    assert raised.value.where == "index x"
    assert raised.value.__suppress_context__


def test_any_value_gets_a_document_in(opensearch: OpenSearch, index_prefix: str) -> None:
    client = connect(settings(opensearch.url))
    columns = {"id": "int4", "f": "float8", "n": "numeric", "d": "date", "ts": "timestamptz"}
    table_index = TableIndex(client, f"{index_prefix}odd", "test", str(TABLE))
    index = table_index.make(
        mapping(schema({**columns, "j": "jsonb", "t": "text", "u": "uuid"})), None
    ).index
    odd = [
        '"f":"NaN","n":"NaN"',
        '"f":"-Infinity","n":"Infinity"',
        '"n":"' + "9" * 5_000 + '.1"',
        '"d":"infinity","ts":"-infinity"',
        '"d":"+294276-12-31","ts":"294276-12-31T23:59:59.999999Z"',
        '"d":"4713-01-01 BC","j":"[1,{}]"',
        '"t":"' + "x" * 100_000 + '","u":"' + "y" * 100_000 + '","j":"' + "z" * 100_000 + '"',
        '"f":[1.5,null],"d":["2024-01-01",null],"n":["1.10",null]',
    ]
    actions = [upsert(str(number), 1, fields) for number, fields in enumerate(odd)]
    assert write(client, f"{index}-write", actions, bulk_bytes=1 << 20).indexed == len(odd)
    table_index.publish(index)
    result = search(settings(opensearch.url, index_prefix), "odd", "n:[1 TO 2]")
    assert [hit["id"] for hit in result.hits] == ["7"]


def test_generation_takes_over_the_alias_and_the_old_one_goes(target: Target) -> None:
    write(target.client, target.write_alias, [upsert("old", 1)], bulk_bytes=1 << 20)
    assert set(target.documents()) == {"old"}
    fresh = target.table_index.make(mapping(schema({"id": "text"})), None).index
    assert fresh == f"{target.alias}-2"
    write(target.client, f"{fresh}-write", [upsert("new", 1)], bulk_bytes=1 << 20)
    assert set(target.documents()) == {"old"}
    target.table_index.publish(fresh)
    assert set(target.documents()) == {"new"}
    assert not target.client.indices.exists(index=target.index)
    served = target.client.indices.get_settings(index=fresh)[fresh]["settings"]["index"]
    assert served["refresh_interval"] == "-1", "whoever writes refreshes in the end"
    assert served["gc_deletes"] == "1h"


def test_an_index_of_another_name_goes_with_its_alias_unless_it_is_another_one(
    target: Target,
) -> None:
    def moved(name: str, former: Generation) -> None:
        renamed = TableIndex(target.client, f"{target.alias}{name}", "test", str(TABLE))
        fresh = renamed.make(mapping(schema({"id": "text"})), None).index
        renamed.publish(fresh, former=former)

    serving = target.index
    answer = target.client.indices.get_settings(index=serving)
    uuid = answer[serving]["settings"]["index"]["uuid"]
    moved("x", Generation(index=serving, uuid="of one that had the name before"))
    assert target.client.indices.exists(index=serving)
    moved("y", Generation(index=serving, uuid=uuid))
    assert not target.client.indices.exists(index=serving)


def test_generation_in_use_is_never_taken(target: Target) -> None:
    made = target.table_index.make(mapping(schema({"id": "text"})), None)
    assert made.index == f"{target.alias}-2"
    assert target.table_index.is_there(made)
    next_one = target.table_index.make(mapping(schema({"id": "text"})), made)
    assert next_one.index == f"{target.alias}-3"


def test_name_of_somebody_elses_index_is_refused(opensearch: OpenSearch, index_prefix: str) -> None:
    client: Client = connect(settings(opensearch.url))
    client.indices.create(index=f"{index_prefix}taken")
    table_index = TableIndex(client, f"{index_prefix}taken", "test", str(TABLE))
    with pytest.raises(SinkError, match="of another program"):
        table_index.make(mapping(schema({"id": "text"})), None)
    assert client.indices.exists(index=f"{index_prefix}taken")


def test_index_of_another_log_is_refused(target: Target) -> None:
    other = TableIndex(target.client, target.alias, "other", str(TABLE))
    with pytest.raises(SinkError, match="of another program"):
        other.make(mapping(schema({"id": "text"})), None)
    assert target.client.indices.exists(index=target.index)


def test_new_column_is_searchable_and_a_changed_type_is_refused(target: Target) -> None:
    more = mapping(schema({"id": "text", "n": "int4", "added": "int4"}))
    assert target.table_index.extend(target.index, more)
    write(target.client, target.write_alias, [upsert("a", 1, '"added":7')], bulk_bytes=1 << 20)
    target.table_index.refresh(target.index)
    assert search(target.settings, "public.things", "added:7").total == 1
    changed = mapping(schema({"id": "text", "n": "bool"}))
    assert not target.table_index.extend(target.index, changed)


def test_truncate_deletes_what_is_as_old_only(target: Target) -> None:
    batch = [upsert(f"k{number}", number) for number in range(100, 200)]
    write(target.client, target.write_alias, batch, bulk_bytes=1 << 20)
    assert target.table_index.truncate(target.index, position(150)) == 51
    assert len(target.documents()) == 49
    assert target.table_index.truncate(target.index, position(150)) == 0
    write(target.client, target.write_alias, [upsert("k100", 160)], bulk_bytes=1 << 20)
    assert "k100" in target.documents()


def test_search_finds_words_and_says_how_many(target: Target) -> None:
    batch = [upsert(f"k{number}", 1, f'"big":"airport number {number}"') for number in range(20)]
    write(target.client, target.write_alias, batch, bulk_bytes=1 << 20)
    target.table_index.refresh(target.index)
    result = search(target.settings, "public.things", "airport", limit=5)
    assert (result.total, len(result.hits)) == (20, 5)
    assert set(result.hits[0]) == {"_id", "_score", "id", "big", "_millrace_position"}
    assert search(target.settings, "public.things", "big:17").hits[0]["id"] == "k17"
    with pytest.raises(ConfigError, match="the query isn't valid"):
        search(target.settings, "public.things", '"unclosed (')
    with pytest.raises(ConfigError, match="is missing"):
        search(target.settings, "public.nothing", "x")
