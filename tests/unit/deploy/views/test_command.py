"""How views are kept → what `millrace views check` prints, and its exit code."""

import json
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner, Result

from cdc.errors import ConfigError, ExitCode, SinkError
from deploy.commands.app import app
from deploy.views.command import as_json, lines
from sinks.views.check import ViewReport
from tests.unit.deploy.commands.test_command_line import NOWHERE

KEPT: Final = ViewReport(
    "by_hour",
    reads=("public.flights", "public.airlines"),
    keys=("span", "airline"),
    groups=("span", "airline"),
    read_whole=("public.flights, where an airline changes: it isn't grouped by carrier",),
    casts=("public.flights.delay is text: cast to double in avg(f.delay)",),
    made_definite=("collect_list(tail) is sorted by id",),
    columns={"span": "struct<start:timestamp>"},
)
WHOLE: Final = ViewReport("top", reads=("by_hour",), way="whole", reasons=("LIMIT without a key",))
BAD: Final = ViewReport(
    "bad",
    error=SinkError("no column `nothing`, at 1:8", where="[[views]] bad", remedy="correct it"),
)
ALL: Final = [KEPT, WHOLE, BAD]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    views = "".join(f'\n[[views]]\nname = "{each.name}"\nquery = "SELECT 1"' for each in ALL)
    path = tmp_path / "millrace.toml"
    path.write_text(f'{NOWHERE}\nlakehouse = {{ path = "{tmp_path}" }}\n{views}\n')
    return path


def checked(config: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["views", "check", *words, "--config", str(config)])


def test_people_read_how_a_view_is_kept_and_why_not_better() -> None:
    assert [*lines(KEPT)] == [
        "by_hour: kept by its changes",
        "  reads: public.flights, public.airlines",
        "  identity of a row: span, airline",
        "  computed together: span, airline",
        "  read whole: public.flights, where an airline changes: it isn't grouped by carrier",
        "  implicit cast: public.flights.delay is text: cast to double in avg(f.delay)",
        "  made definite: collect_list(tail) is sorted by id",
    ]
    assert [*lines(WHOLE)] == [
        "top: evaluated whole at each run",
        "  because: LIMIT without a key",
        "  reads: by_hour",
        "  identity of a row: none: the view is a bag of rows",
    ]
    (bad,) = lines(BAD)
    assert bad.startswith(
        "bad: can't be kept current: no column `nothing`, at 1:8 ([[views]] bad)\n  → "
    )


def test_programs_read_all_of_it() -> None:
    shown = as_json(BAD)
    assert shown["error"] == {
        "what": "no column `nothing`, at 1:8",
        "where": "[[views]] bad",
        "remedy": "correct it",
        "exit_code": ExitCode.SINK,
    }
    assert as_json(KEPT)["error"] is None
    assert as_json(KEPT)["columns"] == {"span": "struct<start:timestamp>"}


@pytest.mark.usefixtures("here")
def test_the_exit_code_is_that_of_the_first_view_that_cant_be_kept(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.views.check.check_views", lambda _context: ALL)
    ended = checked(config)
    assert ended.exit_code == ExitCode.SINK
    assert "\n  because: LIMIT without a key\n" in ended.output
    some = checked(config, "top", "by_hour", "--json")
    assert some.exit_code == ExitCode.OK
    assert [each["name"] for each in json.loads(some.output)] == ["by_hour", "top"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "words", [("views", "check", "other"), ("rebuild", "view", "top", "other")]
)
def test_a_view_that_there_isnt_is_refused_before_anything_starts(
    config: Path, words: tuple[str, ...]
) -> None:
    ended = CliRunner().invoke(app, [*words, "--config", str(config)])
    assert isinstance(ended.exception, ConfigError)
    assert ended.exception.what == "unknown view: other"
    assert ended.exception.remedy == "the views are: by_hour, top, bad"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", [("views", "check"), ("rebuild", "view")])
def test_without_views_a_command_says_how_to_have_some(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "millrace.toml"
    path.write_text(f'{NOWHERE}\nlakehouse = {{ path = "{tmp_path}" }}')
    ended = CliRunner().invoke(app, [*words, "--config", str(path)])
    assert isinstance(ended.exception, ConfigError)
    assert "add a section [[views]]" in ended.exception.remedy
