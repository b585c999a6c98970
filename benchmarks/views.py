"""Two sizes of tables -> one JSON line: what a run of views takes, by what has changed.

`make bench NAME=views`; README.md says what each figure means. As in merge_scale.py, a run of
Millrace's begins each table, and Spark appends the other rows, in files of a range of keys each.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from benchmarks.lakehouse import HEAP, captured, jvm_pid, open_spark, wait_until_logged
from benchmarks.scene import Scene, cpu_s, load, peak_rss_of, say, scene
from benchmarks.views_lake import GROUP_ROWS, STAGES_KEPT, TABLE, ViewLake, change
from benchmarks.views_stream import Textbook, windows
from cdc.settings.views import View
from sinks.delta.version import Version
from sinks.views.target import ViewTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGES: Final = ("small", "scale", "whole", "stream", "dimension")
_SMALL_VIEWS: Final = 20
_SMALL_ROWS: Final = 1_000
_QUERIES: Final = {
    "bucket": "SELECT bucket, count(*) AS rows, sum(amount) AS amount FROM {} GROUP BY bucket",
    "account": "SELECT account, count(*) AS rows, sum(amount) AS amount FROM {} GROUP BY account",
    "named": "SELECT a.name, count(*) AS rows, sum(f.amount) AS amount"
    " FROM {0} f JOIN {0}_accounts a ON f.account = a.id GROUP BY a.name",
    "span": "SELECT window(at, '1 hour') AS span, count(*) AS rows, sum(amount) AS amount"
    " FROM {} GROUP BY 1",
}
"""In the order of the files, and all over them; by a dimension; by time."""
_HOPPING: Final = (
    "SELECT window(at, '1 hour', '15 minutes') AS span, count(*) AS rows, avg(amount) AS amount"
    " FROM {} GROUP BY 1"
)
"""As `examples/views/delays_by_hour.sql`: each row is in four windows."""


class Turn(NamedTuple):
    """A run's seconds, those of the JVM's processors, and what Spark's tasks and files had."""

    seconds: float
    cpu_s: float
    jobs: int
    rows_read: int
    files_read: int


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    rows = int(os.environ.get("ROWS", "20000000"))
    parser = argparse.ArgumentParser(prog="benchmarks.views")
    parser.add_argument("--large", type=int, default=rows, help="rows; also by ROWS")
    parser.add_argument("--small", type=int, default=max(rows // 20, GROUP_ROWS))
    parser.add_argument("--file-rows", type=int, default=1_000_000, help="rows of a table's file")
    parser.add_argument("--changes", type=int, default=1_000, help="of a narrow range of keys")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default=HEAP, help="of the driver's JVM")
    parser.add_argument("--stages", default=",".join(STAGES), help="those to run")
    options = parser.parse_args(arguments)
    options.stages = options.stages.split(",")
    figures: dict[str, object] = {
        **{name: value for name, value in vars(options).items() if name != "stages"},
        "cores": os.cpu_count() or 0,
        "load_before": load(),
    }
    with scene() as made:
        spark = open_spark(options.heap, STAGES_KEPT)
        try:
            figures |= Benchmark(made, spark, options).figures()
            figures["jvm_rss_mb"] = peak_rss_of(jvm_pid(spark))
        finally:
            spark.stop()
    figures["load_after"] = load()
    print(json.dumps({"benchmark": "views", "figures": figures}))
    return 0


class Benchmark:
    """The tables in a lakehouse, and turns on them."""

    def __init__(self, made: Scene, spark: "SparkSession", options: argparse.Namespace) -> None:
        self._made, self._options = made, options
        self._sizes = {"small": options.small, "large": options.large}
        with made.connect() as connection:
            for name, rows in {**self._sizes, "tiny": _SMALL_ROWS}.items():
                connection.execute(TABLE.format(name))
                accounts = max(1, rows // GROUP_ROWS)
                connection.execute(
                    f"CREATE TABLE {name}_accounts (id bigint PRIMARY KEY, name text);"
                    f" INSERT INTO {name}_accounts SELECT i, 'account ' || i"
                    f" FROM generate_series(0, {accounts - 1}) i"
                )
                change(connection, name, 1, rows if name == "tiny" else 1)
        base, self._daemon = captured(made, spark, "views", r"public\.(small|large|tiny).*")
        self._lake = ViewLake(base)
        self._lake.merge()
        for name, rows in self._sizes.items():
            self._lake.grow(name, rows, options.file_rows)
        self._places = dict.fromkeys(self._sizes, 0.25)
        for name in self._sizes:  # the cut has what was appended
            self._change(name, 1)

    def figures(self) -> dict[str, object]:
        """Those of all stages."""
        figures: dict[str, object] = {}
        for stage in self._options.stages:
            say(f"{stage}:")
            figures |= getattr(self, f"_{stage}")()
        self._daemon.stop()
        return figures

    def _change(self, name: str, number: int) -> None:
        """Change rows side by side, at another place each time, and merge them."""
        rows = self._sizes.get(name, _SMALL_ROWS)
        self._places[name] = (self._places.get(name, 0) + 0.31) % 0.9
        first = max(1, int(rows * self._places[name]) // GROUP_ROWS * GROUP_ROWS)
        with self._made.connect() as connection:
            change(connection, name, first, min(rows, first + number - 1))
        wait_until_logged(self._lake.base, self._daemon)
        self._lake.merge()

    def _view(self, kind: str, table: str, name: str | None = None) -> View:
        name = name or f"{kind}_{table}"
        return View(name=name, query=_QUERIES[kind].format(table))

    def _turn(self, *views: View, whole: bool = False) -> Turn:
        """Bring views to the newest cut."""
        pid = jvm_pid(self._lake.spark)
        before, used_s = self._lake.jobs(), cpu_s(pid)
        with _files_read() as files, _whole(on=whole):
            seconds = self._lake.run_views_s(*views)
        jobs, rows = self._lake.read_since(before)
        turn = Turn(seconds, cpu_s(pid) - used_s, jobs, rows, sum(files))
        names = views[0].name + (f" and {len(views) - 1} more" if len(views) > 1 else "")
        say(
            f"  {names}: {turn.seconds:.2f} s, {turn.cpu_s:.1f} s of CPU, {turn.jobs} jobs,"
            f" {turn.rows_read:,} rows and {turn.files_read} files read; load {load()}"
        )
        return turn

    def _turns(
        self,
        views: Mapping[str, View],
        number: int,
        *,
        changed: Callable[[str, int], None] | None = None,
    ) -> dict[str, list[Turn]]:
        """Turns of views by the table that each is of, after so many changes of its rows."""
        for view in views.values():
            self._turn(view)
        turns: dict[str, list[Turn]] = {table: [] for table in views}
        for turn in range(self._options.rounds + 1):
            for table in list(views)[:: 1 if turn % 2 else -1]:
                (changed or self._change)(table, number)
                done = self._turn(views[table])
                if turn:  # in the first round the JVM compiles
                    turns[table].append(done)
        return turns

    def _scale(self) -> dict[str, object]:
        """The same change in tables of two sizes: one range of keys, groups near and scattered."""
        figures: dict[str, object] = {}
        for kind, suffix in {"bucket": "large_to_small", "account": "scattered"}.items():
            views = {table: self._view(kind, table) for table in self._sizes}
            turns = self._turns(views, self._options.changes)
            figures |= _figures(kind, turns) | {f"ratio_{suffix}": _ratio(turns, "large", "small")}
        return figures

    def _dimension(self) -> dict[str, object]:
        """One changed row of a dimension, whose facts are all over the files."""
        views = {table: self._view("named", table) for table in self._sizes}

        def changed(table: str, _number: int) -> None:
            with self._made.connect() as connection:
                connection.execute(
                    f"UPDATE {table}_accounts SET name = name || '.' WHERE id ="
                    f" (SELECT max(id) / 2 FROM {table}_accounts)"
                )
            wait_until_logged(self._lake.base, self._daemon)
            self._lake.merge()

        turns = self._turns(views, 1, changed=changed)
        return _figures("dimension", turns) | {"ratio_dimension": _ratio(turns, "large", "small")}

    def _whole(self) -> dict[str, object]:
        """One change in a thousand rows, in one range: followed, and evaluated as a whole."""
        changes = self._options.large // 1_000
        queries = {"plain": _QUERIES["bucket"], "hopping": _HOPPING}
        figures: dict[str, object] = {}
        rows_read: dict[str, float] = {}
        for kind, query in queries.items():
            views = {
                way: View(name=f"{kind}_{way}", query=query.format("large"))
                for way in ("incremental", "whole")
            }
            turns: dict[str, list[Turn]] = {way: [] for way in views}
            for number in range(self._options.rounds + 1):
                self._change("large", changes)
                for way, view in views.items():
                    done = self._turn(view, whole=way == "whole")
                    if number:  # else they are loaded
                        turns[way].append(done)
            figures |= _figures(f"thousandth_{kind}", turns)
            figures[f"ratio_whole_to_incremental_{kind}"] = _ratio(turns, "whole", "incremental")
            read = {way: median(turn.rows_read for turn in of) for way, of in turns.items()}
            rows_read[kind] = round(read["whole"] / read["incremental"], 1)
        return figures | {"ratio_rows_whole_to_incremental": rows_read}

    def _stream(self) -> dict[str, object]:
        """The same changes by Millrace's merge and view, and by one job of Structured Streaming."""
        view = self._view("span", "large")
        self._turn(view)
        textbook = Textbook(self._lake, "large")
        turns: dict[str, list[float]] = {"millrace": [], "structured_streaming": []}
        for number in range(self._options.rounds + 1):
            first = int(self._options.large * (0.1 + 0.2 * number)) // GROUP_ROWS * GROUP_ROWS
            with self._made.connect() as connection:
                change(connection, "large", first, first + self._options.changes - 1)
            wait_until_logged(self._lake.base, self._daemon)
            kinds: dict[str, Callable[[], float]] = {
                "millrace": lambda: self._lake.merge_s() + self._turn(view).seconds,
                "structured_streaming": textbook.run_s,
            }
            for name in list(kinds)[:: 1 if number % 2 else -1]:
                seconds = kinds[name]()
                say(f"  {name}: {seconds:.2f} s; load {load()}")
                if number:
                    turns[name].append(seconds)
        textbook.require_same(windows(self._lake, view.name))
        pairs = zip(*turns.values(), strict=True)
        return {
            "stream_runs": [[round(each, 2) for each in pair] for pair in pairs],
            "ratio_to_structured_streaming": round(
                median(theirs / ours for ours, theirs in zip(*turns.values(), strict=True)), 2
            ),
        }

    def _small(self) -> dict[str, object]:
        """Views under 4 MiB: one, and many in one run; and one over a large table."""
        kinds = list(_QUERIES)
        views = [
            self._view(kinds[number % len(kinds)], "tiny", f"tiny_{number}")
            for number in range(_SMALL_VIEWS)
        ]
        cases = {
            "small": ("tiny", views[:1]),
            "twenty": ("tiny", views),
            "large": ("large", [self._view("bucket", "large")]),
        }
        turns: dict[str, list[Turn]] = {}
        for name, (table, of) in cases.items():
            self._turn(*of)
            for number in range(self._options.rounds + 1):
                self._change(table, 1)
                turn = self._turn(*of)
                if number:
                    turns.setdefault(name, []).append(turn)
        seconds = {name: _seconds(of) for name, of in turns.items()}
        return _figures("fresh", turns) | {
            "added_freshness_s": {name: seconds[name] for name in ("small", "large")},
            f"small_views_{_SMALL_VIEWS}_s": seconds["twenty"],
        }


@contextmanager
def _files_read() -> Iterator[list[int]]:
    """How many files there are in each of the frames of tables that are made within."""
    make, numbers = Version._of, list[int]()  # noqa: SLF001 (what all reading goes through)

    def counted(version: Version, files: Any) -> "DataFrame":
        numbers.append(int(files.size()))
        return make(version, files)

    with patch.object(Version, "_of", counted):
        yield numbers


@contextmanager
def _whole(*, on: bool) -> Iterator[None]:
    """Have views be evaluated as a whole, as those that can't be followed are."""
    if not on:
        yield
        return
    with patch.object(ViewTarget, "_is_whole", lambda *_: True):
        yield


def _seconds(turns: Sequence[Turn]) -> float:
    return round(median(turn.seconds for turn in turns), 2)


def _ratio(turns: Mapping[str, Sequence[Turn]], of: str, to: str) -> float:
    pairs = zip(turns[of], turns[to], strict=True)
    return round(median(one.seconds / other.seconds for one, other in pairs), 2)


def _figures(what: str, turns: Mapping[str, Sequence[Turn]]) -> dict[str, object]:
    """All that turns had: raw seconds, and medians of the rest."""
    return {
        f"{what}_runs": {
            name: [round(turn.seconds, 2) for turn in of] for name, of in turns.items()
        },
        **{
            f"{what}_{field}": {
                name: round(median(getattr(turn, field) for turn in of), 2)
                for name, of in turns.items()
            }
            for field in ("cpu_s", "jobs", "rows_read", "files_read")
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
