"""[[views]] → views with their SELECTs; an unusable one is refused with its reason."""

from pathlib import Path

import pytest

from cdc.errors import ConfigError, ExitCode
from cdc.settings import Settings, View, load

BASE = """
[source]
host = "db"
[capture]
topic.prefix = "shop"
[kafka]
bootstrap.servers = "kafka:9092"
"""
LAKEHOUSE = '[lakehouse]\npath = "/lake"\n'
VIEW = '[[views]]\nname = "totals"\nquery = "SELECT 1"\n'


def settings(folder: Path, text: str) -> Settings:
    path = folder / "millrace.toml"
    path.write_text(BASE + text)
    return load(path)


def test_views_are_read_in_their_order_with_their_selects(tmp_path: Path) -> None:
    file = tmp_path / "by_hour.sql"
    file.write_text("SELECT 2\n")
    more = f'[[views]]\nname = "by_hour"\nfile = "{file}"\nhistory = true\n'
    read = settings(tmp_path, LAKEHOUSE + VIEW + more)
    assert [(view.name, view.sql(), view.history) for view in read.views] == [
        ("totals", "SELECT 1", False),
        ("by_hour", "SELECT 2\n", True),
    ]
    assert [view.name for view in read.require_views(["by_hour"])] == ["by_hour"]
    assert read.require_views() == read.views


def test_a_file_is_found_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "t.sql").write_text("SELECT 3")
    assert View(name="t", file="views/t.sql").sql() == "SELECT 3"


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (VIEW, "need the lakehouse's tables: add a section"),
        (LAKEHOUSE + VIEW * 2, r"\[\[views\]\]: totals: give each view another name"),
        (
            LAKEHOUSE + VIEW.replace("totals", "Totals"),
            r"\[views\] name: 'Totals' can't name a view",
        ),
        (LAKEHOUSE + VIEW.replace("totals", "_x"), "'_x' can't name a view"),
        (LAKEHOUSE + VIEW.replace("totals", "1x"), "beginning with a letter"),
        (LAKEHOUSE + VIEW.replace("totals", "a.b"), "'a.b' can't name a view"),
        (LAKEHOUSE + VIEW.replace("totals", "x" * 129), "up to 128"),
        (LAKEHOUSE + VIEW.replace("SELECT 1", " "), r"\[views\] query"),
        (LAKEHOUSE + VIEW + 'file = "x.sql"\n', "totals: set either query or file"),
        (LAKEHOUSE + '[[views]]\nname = "totals"\n', "totals: set either query or file"),
        (LAKEHOUSE + VIEW + "every = 1\n", r"\[views\] every: unknown key"),
        ('[views]\nname = "totals"\n', r"\[views\]"),
        (
            LAKEHOUSE + 'topics_written_by = "debezium"\n' + VIEW,
            "views.. need Millrace's own log: the topics of a real Debezium",
        ),
    ],
)
def test_a_view_that_cant_be_one_is_refused(tmp_path: Path, views: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, views)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "can't read its file .*t.sql: No such file"),
        (b" \n", "its file .*t.sql is empty"),
        (b"SELECT '\xff'", "its file .*t.sql isn't UTF-8"),
    ],
)
def test_a_file_without_a_select_is_named(tmp_path: Path, text: bytes | None, message: str) -> None:
    file = tmp_path / "t.sql"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigError, match=message) as refused:
        View(name="t", file=file).sql()
    assert refused.value.where == "[[views]] t"
    assert refused.value.remedy


def test_a_name_that_no_view_has_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    read = settings(tmp_path, LAKEHOUSE + VIEW)
    with pytest.raises(ConfigError, match=r"unknown view: other .*\n.*the views are: totals") as no:
        read.require_views(["other", "totals"])
    assert no.value.exit_code == ExitCode.CONFIG
    without = settings(tmp_path, LAKEHOUSE)
    with pytest.raises(
        ConfigError, match=r"the configuration has no view .*\n.*add a section \[\[views\]\]"
    ):
        without.require_views()
