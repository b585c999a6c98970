"""Bounds of partitions as pg_get_expr writes them → their meaning; other texts are refused."""

from hypothesis import example, given
from hypothesis import strategies as st

from cdc.postgres.partitions import parse_bound
from cdc.records.bounds import Bound, RangeEdge
from cdc.records.schema import UNREADABLE

CHARACTERS = st.sampled_from("ab', ()NULMXE-\\")
VALUES = st.text(CHARACTERS, max_size=8) | st.sampled_from(["NULL", "true"])
EDGES = st.builds(RangeEdge, st.just("value"), VALUES) | st.sampled_from(
    [RangeEdge("min"), RangeEdge("max")]
)
KEYS = st.integers(1, 3).map(lambda count: tuple("abc"[:count]))
RANGES = KEYS.flatmap(
    lambda columns: st.builds(
        Bound,
        columns=st.just(columns),
        lower=st.tuples(*[EDGES] * len(columns)),
        upper=st.tuples(*[EDGES] * len(columns)),
    )
)
LISTS = st.builds(
    Bound,
    columns=st.just(("a",)),
    values=st.lists(st.none() | VALUES, min_size=1, max_size=3).map(tuple),
)


def quoted(value: object) -> str:
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


def rendered(bound: Bound) -> str:
    """As PostgreSQL writes it."""
    if bound.values is not None:
        return f"FOR VALUES IN ({', '.join(map(quoted, bound.values))})"
    words = {"min": "MINVALUE", "max": "MAXVALUE"}
    lower, upper = (
        ", ".join(words.get(edge.kind) or quoted(edge.value) for edge in edges)
        for edges in (bound.lower, bound.upper)
    )
    return f"FOR VALUES FROM ({lower}) TO ({upper})"


@given(RANGES | LISTS)
def test_what_is_written_is_read(bound: Bound) -> None:
    assert parse_bound(bound.columns, rendered(bound)) == bound


@given(RANGES | LISTS, st.integers(0, 60), st.text(st.sampled_from("',()x \\"), max_size=2))
@example(Bound(columns=("a",), values=("a",)), 17, "\\")
@example(Bound(columns=("a",), values=("a", "b")), 19, "")
def test_whatever_is_taken_is_all_that_is_written(bound: Bound, place: int, other: str) -> None:
    """Of a text with something else in its place: none, or what would be written so."""
    text = rendered(bound)
    changed = text[:place] + other + text[place + 1 :]
    read = parse_bound(bound.columns, changed)
    assert read is None or rendered(read) == changed


def test_numbers_and_words_need_no_quotes() -> None:
    assert parse_bound(("a",), "FOR VALUES IN (1, '-2', 1.50, true, false, NULL)") == Bound(
        columns=("a",), values=("1", "-2", "1.50", "t", "f", None)
    )
    for text in (
        "DEFAULT",
        "FOR VALUES WITH (modulus 2, remainder 0)",
        "FOR VALUES IN (1, 2) ",
        "FOR VALUES IN ('2024-01-01'::date)",
        "FOR VALUES IN (-1)",
        "FOR VALUES IN (E'a')",
        "FOR VALUES FROM (1, 2) TO (3, 4)",
        "FOR VALUES FROM (NULL) TO (3)",
        "FOR VALUES IN (MINVALUE)",
        f"FOR VALUES IN ('caf{UNREADABLE}')",
        "",
    ):
        assert parse_bound(("a",), text) is None
    assert parse_bound(("a", "b"), "FOR VALUES IN (1)") is None
