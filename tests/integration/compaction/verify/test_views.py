"""Views compared with their queries: right ones, unfinished ones, and rows that others changed."""

from collections.abc import Callable
from typing import Any

import pytest

from cdc.settings.views import View
from compaction.verify.options import VerifyOptions
from compaction.verify.report import DifferingValue, VerifiedTable
from compaction.verify.slices import Slice
from compaction.verify.views import ComparedViews
from sinks.run.options import RunContext, RunOptions
from sinks.views.records import ViewRecords
from tests.fixtures.hand_views import SUMS, Views
from tests.fixtures.spark import replace_rows

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
RATES = "SELECT kind, avg(v / 3D) AS rate, map('v', max(v)) AS most FROM t GROUP BY kind"
BAG = "SELECT kind, v % 2 AS odd FROM sums WHERE kind < 'c'"

PLANTED = {
    "sums": """
        SELECT kind, if(kind = 'b', 3, n) AS n, if(kind = 'b', 12, v) AS v, * EXCEPT (kind, n, v)
        FROM {0} WHERE kind <> 'a'
        UNION ALL SELECT 'z', n, v, 'z' FROM {0} WHERE kind = 'c'
        UNION ALL SELECT * FROM {0} WHERE kind = 'd'
    """,
    "sums_history": """
        SELECT if(kind = 'b' AND is_current, 9, n) AS n, * EXCEPT (n) FROM {0}
    """,
    "rates": """
        SELECT CASE kind WHEN 'a' THEN rate * (1 + 1e-15) WHEN 'b' THEN rate * (1 + 1e-6)
            ELSE rate END AS rate,
            if(kind = 'c', map('v', 0), most) AS most, * EXCEPT (rate, most)
        FROM {0}
    """,
}


class DiedError(Exception):
    """The process ends here."""


def dies_at(number: int, write: Callable[..., None]) -> Callable[..., None]:
    """Write so often less one, and die instead."""
    left = iter(range(number - 1))

    def written(*given: Any) -> None:
        if next(left, None) is None:
            raise DiedError
        write(*given)

    return written


def compared(
    views: Views,
    *names: str,
    options: VerifyOptions = VerifyOptions(),  # noqa: B008 (frozen)
) -> dict[str, VerifiedTable]:
    lakehouse = views.lakehouse
    context = RunContext(
        lakehouse.settings, lambda _records=0: lakehouse.spark, print, RunOptions()
    )
    tables = ComparedViews(context, names or None, options).compared().values()
    return {table.name: table for table in tables}


def found(table: VerifiedTable) -> set[tuple[str | None, str, tuple[str, ...]]]:
    """The key, the kind, and the columns of what differs."""
    return {(key.key["kind"], key.difference, key.columns) for key in table.keys}


def test_rows_of_a_view_that_others_have_changed_are_found_by_key_and_column(
    views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = View(name="sums", query=SUMS, history=True)
    views.define(sums, rates=RATES, bag=BAG)
    views.write((1, "a", 1), (2, "b", 5), (3, "b", 6), (4, "c", 7), (5, "d", 8))
    views.merge_tables()
    assert {table.unverified[:18] for table in compared(views).values()} == {"it isn't built yet"}
    views.merge()
    views.write((1, "a", 2), (6, "e", 9))
    views.merge_tables()
    with monkeypatch.context() as patched:
        patched.setattr(ViewRecords, "write", dies_at(3, ViewRecords.write))
        with pytest.raises(DiedError):
            views.merge()
    right = compared(views)
    assert right.keys() == {"sums", "sums_history", "rates", "bag"}
    assert not [table for table in right.values() if not table.is_right]
    assert max(table.rows for table in right.values()) == 4, "as of their records"
    views.merge()

    for name, rows in PLANTED.items():
        replace_rows(views.lakehouse.spark, views.path(name), rows)
    wrong = compared(views)
    assert wrong["bag"].is_right
    assert found(wrong["sums"]) == {
        ("a", "missing", ()), ("b", "different", ("n", "v")),
        ("z", "extra", ()), ("d", "extra", ()),
    }  # fmt: skip
    assert (wrong["sums"].missing, wrong["sums"].extra, wrong["sums"].different) == (1, 2, 1)
    sliced = [
        key
        for number in (1, 2)
        for key in compared(
            views, "sums", options=VerifyOptions(slice_=Slice(number, 2), values=True)
        )["sums"].keys
    ]
    assert len(sliced) == len(wrong["sums"].keys), "each in one slice"
    (values,) = [key.values for key in sliced if key.key["kind"] == "b"]
    assert values["v"] == DifferingValue(source="11", here="12")
    assert found(wrong["sums_history"]) == {("b", "different", ("n",))}
    assert found(wrong["rates"]) == {
        ("b", "different", ("rate",)), ("c", "different", ("most",)),
    }  # fmt: skip

    views.define(bag="SELECT kind, v % 3 AS odd FROM sums")
    assert "definition was changed" in compared(views)["bag"].unverified
