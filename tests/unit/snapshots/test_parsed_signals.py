"""A signal's type and data → its request, or its error."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.signals.parsed import Signal, SignalError, parse

CONDITION = '{"data-collection": "public.a", "filter": "id > 5"}'


@pytest.mark.parametrize(
    ("kind", "data", "signal"),
    [
        (
            "execute-snapshot",
            '{"data-collections": ["public.a", " public.b.* "]}',
            Signal("execute-snapshot", ("public.a", "public.b.*"), "incremental"),
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["public.a"], "type": "BLOCKING"}',
            Signal("execute-snapshot", ("public.a",), "blocking"),
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["public.a"], "additional-conditions": [' + CONDITION + "]}",
            Signal("execute-snapshot", ("public.a",), "incremental", (("public.a", "id > 5"),)),
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["public.a"], "surrogate-key": "c"}',
            Signal("execute-snapshot", ("public.a",), "incremental"),
        ),
        ("stop-snapshot", "", Signal("stop-snapshot")),
        ("stop-snapshot", None, Signal("stop-snapshot")),
        (
            "stop-snapshot",
            '{"data-collections": ["public.a"]}',
            Signal("stop-snapshot", ("public.a",)),
        ),
        (
            "execute-snapshot",
            {"data-collections": ["public.a"], "reset": True},
            Signal("execute-snapshot", ("public.a",), "incremental", reset=True),
        ),
        ("pause-snapshot", "{}", Signal("pause-snapshot")),
        (
            "pause-snapshot",
            {"data-collections": ["public.a"]},
            Signal("pause-snapshot", ("public.a",)),
        ),
        ("resume-snapshot", None, Signal("resume-snapshot")),
        (
            "log",
            '{"message": "Snapshot at offset {}"}',
            Signal("log", message="Snapshot at offset {}"),
        ),
        ("snapshot-window-open", "not looked at", None),
        ("snapshot-window-close", None, None),
    ],
)
def test_a_signal_is_understood(
    kind: str, data: str | Mapping[str, Any] | None, signal: Signal | None
) -> None:
    assert parse(kind, data) == signal


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("execute", "{}", "unknown signal type 'execute'"),
        ("", "{}", "unknown signal type ''"),
        ("execute-snapshot", "", "names no table"),
        ("execute-snapshot", '{"data-collections": []}', "names no table"),
        ("execute-snapshot", "{", "isn't JSON"),
        ("execute-snapshot", "[]", "isn't a JSON object"),
        ("execute-snapshot", "[" * 100_000, "nested too deeply"),
        ("execute-snapshot", '{"data-collections": "public.a"}', "isn't a list of names"),
        ("execute-snapshot", '{"data-collections": [1]}', "isn't a list of names"),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "type": "x"}',
            "unknown snapshot type 'x'",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "additional-conditions": {}}',
            "isn't a list of objects",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "additional-conditions": [{"filter": "true"}]}',
            "data-collection is missing",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "surrogate-key": 1}',
            "surrogate-key",
        ),
        ("stop-snapshot", '{"type": "blocking"}', "can be stopped"),
        ("pause-snapshot", "{", "isn't JSON"),
        ("execute-snapshot", '{"data-collections": ["a.b"], "reset": 1}', "reset isn't true or"),
        ("log", "{}", "message is missing"),
        ("execute-snapshot", '{"data-collections": ["\\ud800"]}', "isn't JSON"),
        ("execute-snapshot", json.dumps({"data-collections": ["a"] * 1_001}), "more than 1,000"),
        (
            "execute-snapshot",
            json.dumps(
                {
                    "data-collections": ["a"],
                    "additional-conditions": [{"data-collection": "a", "filter": "x" * 8_193}],
                }
            ),
            "more than 8,192 characters",
        ),
    ],
)
def test_what_is_wrong_is_told(kind: str, data: str, reason: str) -> None:
    with pytest.raises(SignalError, match=reason):
        parse(kind, data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)
NAMES = ("data-collections", "type", "additional-conditions", "message", "surrogate-key")


@given(
    st.sampled_from(["execute-snapshot", "stop-snapshot", "pause-snapshot", "log"]),
    st.dictionaries(st.sampled_from(NAMES), JSON).map(json.dumps) | st.text(),
)
def test_whatever_is_written_there_no_other_error_comes_of_it(kind: str, data: str) -> None:
    with suppress(SignalError):
        parse(kind, data)
