"""Actions at a real OpenSearch: order of versions, repeats, absent values, faults, refusals."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cdc.errors import SinkError, SinkUnreachableError
from deploy.local.opensearch import OpenSearch
from sinks.search.bulk import Action, Counts, write
from sinks.search.client import Patience, connect
from sinks.search.executors import DocumentCompletion
from tests.fixtures.proxy import Proxy
from tests.fixtures.search_tables import Target, delete, position, settings, upsert

pytestmark = pytest.mark.opensearch

BULK_BYTES = 1 << 16
QUICK = Patience(total_s=60.0, first_pause_s=0.01, pause_s_max=0.05)
SHORT = replace(QUICK, total_s=1.0)


@pytest.fixture
def target(opensearch: OpenSearch, index_prefix: str) -> Target:
    return Target(opensearch.url, index_prefix)


def apply(target: Target, *actions: Action) -> Counts:
    return write(target.client, target.write_alias, actions, bulk_bytes=BULK_BYTES)


def test_repeating_a_batch_changes_nothing(target: Target) -> None:
    batch = [upsert("a", 10, '"n":1'), upsert("b", 11, '"n":2'), delete("c", 12)]
    assert apply(target, *batch) == Counts(inserted=2)
    once = target.documents()
    assert apply(target, *batch) == Counts(updated=2)
    assert target.documents() == once == {"a": {"id": "a", "n": 1}, "b": {"id": "b", "n": 2}}


def test_late_older_change_overwrites_nothing(target: Target) -> None:
    apply(target, upsert("a", 20, '"n":2'))
    assert apply(target, upsert("a", 19, '"n":1'), upsert("b", 5)) == Counts(inserted=1, stale=1)
    assert target.documents()["a"]["n"] == 2


def test_equal_version_wins(target: Target) -> None:
    apply(target, upsert("a", 20, '"n":1'))
    apply(target, upsert("a", 20, '"n":2'))
    assert target.documents()["a"]["n"] == 2


def test_deleted_document_does_not_come_back(target: Target) -> None:
    apply(target, upsert("a", 10))
    apply(target, delete("a", 20), delete("never seen", 20))
    older = [upsert("a", 19), upsert("never seen", 19)]
    assert apply(target, *older) == Counts(stale=2)
    assert target.documents() == {}
    assert apply(target, upsert("a", 21)) == Counts(inserted=1)


def test_late_older_deletion_deletes_nothing(target: Target) -> None:
    apply(target, upsert("a", 20))
    assert apply(target, delete("a", 19)) == Counts(stale=1)
    assert "a" in target.documents()


def test_bulks_are_bounded_in_bytes(target: Target) -> None:
    many = [upsert(f"k{number}", 10, f'"big":"{"x" * 10_000}"') for number in range(30)]
    sizes = []
    send = target.client.bulk

    def measured(**request: Any) -> Any:
        sizes.append(len(request["body"]))
        return send(**request)

    target.client.bulk = measured
    assert apply(target, *many).indexed == 30
    assert len(sizes) > 1
    assert max(sizes) <= BULK_BYTES


def test_document_larger_than_a_bulk_goes_alone(target: Target) -> None:
    large = upsert("large", 10, f'"big":"{"x" * (BULK_BYTES * 2)}"')
    assert apply(target, upsert("a", 1), large, upsert("b", 1)).indexed == 3


@pytest.mark.parametrize("key", ['q"uote', "größe", "a/b?c#d%20", " ", "\\", "x" * 600, "\x01\n"])
def test_any_key_finds_its_document_again(target: Target, key: str) -> None:
    action = Action(upsert("", 1).id, 1, None)
    fields = {"id": key, "_millrace_position": str(position(1))}
    action = upsert(key, 1)._replace(source=json.dumps(fields).encode())
    apply(target, action, action._replace(version=2))
    assert [source["id"] for source in target.documents().values()] == [key]
    assert apply(target, action._replace(version=3, source=None)).deleted == 1
    assert target.documents() == {}


def fill(target: Target, actions: Iterable[Action]) -> tuple[list[Action], int]:
    completion = DocumentCompletion(target.client, target.write_alias, BULK_BYTES)
    return list(completion.fill(actions)), completion.incomplete


def test_absent_values_keep_the_stored_ones(target: Target) -> None:
    apply(target, upsert("a", 10, '"n":1,"big":"kept"'), upsert("null", 10, '"n":1'))
    update = [upsert("a", 20, '"n":2', ("big",)), upsert("null", 20, '"n":2', ("big",))]
    filled, incomplete = fill(target, update)
    assert incomplete == 0
    apply(target, *filled)
    expected = {"a": {"id": "a", "n": 2, "big": "kept"}, "null": {"id": "null", "n": 2}}
    assert target.documents() == expected
    apply(target, *fill(target, update)[0])
    assert target.documents() == expected


def test_filled_values_give_way_to_the_stored_ones(target: Target) -> None:
    apply(target, upsert("a", 10, '"n":1,"big":"exact"'), upsert("null", 10, '"n":1'))
    apply(target, *fill(target, [upsert("unknown", 10, '"n":1', ("big",))])[0])
    update = [
        upsert(key, 20, '"n":2,"big":"read"', filled=("big",))
        for key in ("a", "null", "unknown", "new")
    ]
    actions, incomplete = fill(target, update)
    assert incomplete == 0
    apply(target, *actions)
    assert target.documents() == {
        "a": {"id": "a", "n": 2, "big": "exact"},
        "null": {"id": "null", "n": 2, "big": "read"},  # what isn't sent is no null
        "unknown": {"id": "unknown", "n": 2, "big": "read"},
        "new": {"id": "new", "n": 2, "big": "read"},
    }


def test_absent_values_that_nobody_has_are_marked_until_they_come(target: Target) -> None:
    lacking = upsert("a", 10, '"n":1', ("big",))
    filled, incomplete = fill(target, [lacking])
    assert incomplete == 1
    apply(target, *filled)
    assert target.documents()["a"] == {"id": "a", "n": 1, "_millrace_absent": ["big"]}
    still = fill(target, [upsert("a", 20, '"n":2', ("big",))])
    assert still[1] == 1
    apply(target, *still[0])
    assert target.documents()["a"] == {"id": "a", "n": 2, "_millrace_absent": ["big"]}
    apply(target, upsert("a", 30, '"n":2,"big":"here"'))
    assert target.documents()["a"] == {"id": "a", "n": 2, "big": "here"}


def test_many_absent_values_are_fetched_in_pieces(target: Target) -> None:
    keys = [f"k{number}" for number in range(100)]
    apply(target, *(upsert(key, 10, f'"big":"{key * 2_000}"') for key in keys))
    apply(target, *fill(target, [upsert(key, 20, '"n":2', ("big",)) for key in keys])[0])
    documents = target.documents()
    assert all(documents[key] == {"id": key, "n": 2, "big": key * 2_000} for key in keys)


def test_refused_document_stops_the_run_and_says_why(target: Target) -> None:
    bad = upsert("bad", 10)._replace(source=b'{"big":{"not":"text"}}')
    with pytest.raises(SinkError) as raised:
        apply(target, upsert("good", 10), bad)
    message = str(raised.value)
    assert "1 document" in message
    assert "bad: " in message
    assert target.write_alias in message


def test_index_that_is_gone_is_not_invented(target: Target) -> None:
    target.client.indices.delete(index=target.index)
    with pytest.raises(SinkError, match="refused"):
        apply(target, upsert("a", 1))
    assert not target.client.indices.exists(index=target.write_alias)


def test_read_only_index_is_explained(target: Target) -> None:
    block = {"index.blocks.read_only_allow_delete": True}
    target.client.indices.put_settings(index=target.index, body=block)
    with pytest.raises(SinkError, match="read-only") as raised:
        apply(target, upsert("a", 1))
    assert "disk space" in raised.value.remedy
    target.client.indices.put_settings(
        index=target.index, body={"index.blocks.read_only_allow_delete": None}
    )
    assert apply(target, upsert("a", 1)).indexed == 1


class Moody:
    """A way to the server that answers some bulk requests itself."""

    def __init__(self, url: str, moods: list[int | str]) -> None:
        self.moods = moods
        self.requests = 0
        target, outer = connect(settings(url)), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.requests += 1
                mood = outer.moods.pop(0) if outer.moods else 0
                status = HTTPStatus.OK
                answer: dict[str, Any]
                if isinstance(mood, int) and mood:
                    status, answer = HTTPStatus(mood), {"error": {"type": "moody", "reason": "no"}}
                else:
                    answer = target.transport.perform_request("POST", self.path, body=body)
                if mood == "half":  # the first half was taken, the other wasn't
                    for item in answer["items"][len(answer["items"]) // 2 :]:
                        (result,) = item.values()
                        result |= {"status": 429, "error": {"type": "rejected", "reason": "full"}}
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def moody(opensearch: OpenSearch) -> Iterator[Callable[..., Moody]]:
    made: list[Moody] = []

    def make(*moods: int | str) -> Moody:
        made.append(Moody(opensearch.url, list(moods)))
        return made[-1]

    yield make
    for each in made:
        each.server.shutdown()
        each.server.server_close()


def test_busy_server_gets_everything_in_the_end(
    target: Target, moody: Callable[..., Moody]
) -> None:
    way = moody(429, 503, "half", 502, "half", 429)
    client = connect(settings(way.url))
    batch = [upsert(f"k{number}", 10) for number in range(40)]
    counts = write(client, target.write_alias, batch, bulk_bytes=BULK_BYTES, patience=QUICK)
    assert counts.indexed == 40
    assert way.requests == 7
    assert len(target.documents()) == 40


def test_server_busy_for_too_long_fails_the_run(
    target: Target, moody: Callable[..., Moody]
) -> None:
    client = connect(settings(moody(*[429] * 1_000).url))
    with pytest.raises(SinkUnreachableError, match="overloaded"):
        write(client, target.write_alias, [upsert("a", 1)], bulk_bytes=BULK_BYTES, patience=SHORT)


def test_body_too_large_for_a_proxy_is_halved(target: Target, moody: Callable[..., Moody]) -> None:
    client = connect(settings(moody(413, 413).url))
    batch = [upsert(f"k{number}", 10) for number in range(9)]
    counts = write(client, target.write_alias, batch, bulk_bytes=BULK_BYTES, patience=QUICK)
    assert counts.indexed == len(target.documents()) == 9


def test_cut_connections_lose_nothing(
    target: Target, opensearch: OpenSearch, proxy: Callable[[int], Proxy]
) -> None:
    way = proxy(opensearch.port)
    client = connect(settings(f"http://127.0.0.1:{way.port}"))

    def actions() -> Iterator[Action]:
        for number in range(300):
            if number == 100:
                way.reset_connections()
            if number == 200:
                way.cut()
                threading.Timer(0.5, way.restore).start()
            yield upsert(f"k{number}", 10, f'"big":"{"x" * 5_000}"')

    counts = write(client, target.write_alias, actions(), bulk_bytes=BULK_BYTES)
    assert counts.indexed == len(target.documents()) == 300


@pytest.mark.proof
def test_server_killed_in_mid_bulk_has_everything_after_the_repeat(server_folder: Any) -> None:
    node = OpenSearch(server_folder).start()
    try:
        target = Target(node.url, "killed-")
        batch = [upsert(f"k{n}", 10, f'"big":"{"x" * 2_000}"') for n in range(3_000)]
        batch += [delete(f"k{n}", 20) for n in range(0, 3_000, 3)]
        batch = [action for action in batch if action.source is None or int(action.id[1:]) % 3]
        taken: list[int] = []

        def dying() -> Iterator[Action]:
            for number, action in enumerate(batch):
                taken.append(number)
                if number == 1_500:
                    node.kill()
                yield action

        with pytest.raises(SinkUnreachableError, match="doesn't answer"):
            write(target.client, target.write_alias, dying(), bulk_bytes=BULK_BYTES, patience=SHORT)
        assert len(taken) < len(batch)
        node.start()
        counts = write(target.client, target.write_alias, batch, bulk_bytes=BULK_BYTES)
        assert counts.indexed == 2_000
        assert set(target.documents()) == {f"k{n}" for n in range(3_000) if n % 3}
    finally:
        node.stop()


def test_pauses_grow_and_end() -> None:
    from sinks.search.client import Backoff

    slept: list[float] = []
    now = time.monotonic()
    backoff = Backoff(
        Patience(total_s=10, first_pause_s=1, pause_s_max=4), slept.append, lambda: now + sum(slept)
    )
    while backoff.wait():
        pass
    assert 3 <= len(slept) <= 8
    assert all(0.5 <= pause <= 4 for pause in slept)
