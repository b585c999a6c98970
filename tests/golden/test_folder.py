"""A folder of new cases → each runs, and each has an outcome."""

from pathlib import Path
from typing import cast

import pytest

from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from tests.golden import records
from tests.golden.case import Case, find
from tests.golden.runner import Runner


class _Server:
    """A PostgreSQL that refuses every script."""

    def __init__(self) -> None:
        self.databases: list[str] = []

    def create_database(self, name: str) -> dict[str, str]:
        self.databases.append(name)
        return {"host": "127.0.0.1", "port": "1", "dbname": name, "user": "nobody"}

    def drop_database(self, name: str) -> None:
        self.databases.remove(name)

    def bin(self, name: str) -> Path:
        return Path("/nowhere") / name

    def client_options(self) -> dict[str, str]:
        return {"bootstrap.servers": "127.0.0.1:1"}


def _case(folder: Path, name: str, properties: str | None, **files: str) -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "expected.jsonl").touch()
    if properties is not None:
        (made / "debezium.properties").write_text(properties, encoding="utf-8")
    for file, text in files.items():
        (made / file.replace("_", ".")).write_text(text, encoding="utf-8")
    return made


PREFIX = "debezium.source.topic.prefix=some\n"


def test_cases_are_found_in_the_folder_or_in_cases_below_it(tmp_path: Path) -> None:
    names = ["Odd-id.1", "with space"]
    made = [_case(tmp_path / "cases", name, PREFIX) for name in names]
    (tmp_path / "cases" / "notes.txt").touch()
    (tmp_path / "cases" / "empty").mkdir()
    assert find(tmp_path) == find(tmp_path / "cases") == made
    assert find(tmp_path, "Odd-id.1") == made[:1]


def test_a_folder_without_cases_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no case in"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("properties", "files", "reason"),
    [
        (None, {}, "debezium.properties"),
        ("", {}, "topic.prefix is missing"),
        (PREFIX + "nonsense\n", {}, "no such property: nonsense"),
        (PREFIX + "debezium.source.no.such=1\n", {}, "no.such: unknown key"),
        (PREFIX, {"case_json": "{"}, "JSONDecodeError"),
        (PREFIX, {"setup_sql": "SELECT 1/0"}, "/nowhere/psql"),
    ],
)
def test_a_case_that_cannot_run_has_failed_and_says_why(
    tmp_path: Path, properties: str | None, files: dict[str, str], reason: str
) -> None:
    server = _Server()
    runner = Runner(cast("Postgres", server), cast("Kafka", server), tmp_path / "runs")
    outcome = runner.run(_case(tmp_path, "some", properties, **files))
    assert not outcome.passed
    assert reason in str(outcome)
    assert not server.databases  # nor the slots in them, of which a server has few


def test_options_that_make_no_difference_to_events_are_left_out(tmp_path: Path) -> None:
    lines = f"{PREFIX}debezium.source.snapshot.locking.mode=none\ndebezium.sink.type=kafka\n"
    capture = Case.read(_case(tmp_path, "some", lines)).sections["capture"]
    assert not [key for key in capture if "locking" in key or "sink" in key]


def test_a_recorded_text_may_hold_any_line_separator(tmp_path: Path) -> None:
    path = tmp_path / "expected.jsonl"
    path.write_text('{"value":"a\u2028b\x85c"}\n\n', encoding="utf-8")
    assert records.parsed(path) == [{"value": "a\u2028b\x85c"}]
