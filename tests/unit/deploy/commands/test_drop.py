"""`millrace drop`, with a server or a file system that fails."""

import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from cdc.errors import (
    LogAccessError,
    LogUnreachableError,
    MillraceError,
    SourceUnreachableError,
)
from cdc.settings import Settings
from deploy.commands import drop
from sinks.views.records import ViewRecord, view_records
from tests.unit.cdc.capture.test_start import SLOT

SETTINGS = Settings.model_validate({
    "source": {},
    "capture": {"topic.prefix": "p"},
    "kafka": {"bootstrap.servers": "nowhere:1"},
})  # fmt: skip


@pytest.mark.parametrize("kind", [LogUnreachableError, LogAccessError])
def test_the_line_that_drops_the_slot_is_named_where_the_log_doesnt_answer(
    monkeypatch: pytest.MonkeyPatch, kind: type[MillraceError]
) -> None:
    failure = kind("no answer", remedy="solve that")
    monkeypatch.setattr("deploy.commands.drop.last_progress", Mock(side_effect=failure))
    with pytest.raises(kind) as caught:
        drop._slot(SETTINGS, SLOT)
    assert caught.value.remedy.startswith("solve that; or, if no other program uses the slot")
    assert caught.value.remedy.endswith("SELECT pg_drop_replication_slot('s');")


def test_nothing_goes_while_the_source_doesnt_tell_whether_a_daemon_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unreachable = SourceUnreachableError("no route to the source")
    removed = Mock()
    topics = Mock(return_value=[drop.Item("topic p.public.item", removed)])
    monkeypatch.setattr(drop, "load_to_connect", Mock(return_value=SETTINGS))
    monkeypatch.setattr(drop, "connect", Mock(side_effect=unreachable))
    monkeypatch.setattr(drop, "_topics", topics)
    with pytest.raises(SourceUnreachableError, match="no route"):
        drop.drop(yes=True, topics=True)
    said = capsys.readouterr().out
    assert "to remove: topic p.public.item\n" in said
    assert said.endswith(
        "nothing was removed: the source doesn't answer, so a daemon may still run\n"
    )
    removed.assert_not_called()


def folder_item(path: Path, lakehouse: Path, *, last: bool = False) -> drop.Item:
    path.parent.mkdir(parents=True, exist_ok=True)
    return drop.Item(path.name, partial(drop._remove_folder, path, lakehouse), last=last)


def test_a_linked_table_is_left_and_the_plans_that_tell_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere, lakehouse = tmp_path / "elsewhere", tmp_path / "lakehouse"
    elsewhere.mkdir()
    linked = folder_item(lakehouse / "public" / "linked", lakehouse)
    (lakehouse / "public" / "linked").symlink_to(elsewhere)
    table = folder_item(lakehouse / "public" / "item", lakehouse)
    (lakehouse / "public" / "item").mkdir()
    plans = folder_item(lakehouse / "_millrace", lakehouse, last=True)
    (error,) = drop._remove([linked, table, plans], [])
    assert "symbolic link" in error.what
    said = capsys.readouterr().out
    assert "removed item\n" in said
    assert "left: linked: can't remove a folder" in said
    assert "left: _millrace: the next drop" in said
    assert elsewhere.exists()


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_folder_counts_as_gone_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> None:
    """A file of it may vanish meanwhile, as under a merge's VACUUM."""
    item = folder_item(tmp_path / "public" / "item", tmp_path)
    if not is_gone:
        (tmp_path / "public" / "item").mkdir()
    monkeypatch.setattr(shutil, "rmtree", Mock(side_effect=FileNotFoundError(2, "No such file")))
    errors = drop._remove([item], [])
    assert len(errors) == (0 if is_gone else 1)


def test_views_go_with_the_tables_and_what_else_is_in_their_folder_stays(tmp_path: Path) -> None:
    lakehouse = {"lakehouse": {"path": str(tmp_path)}}
    settings = Settings.model_validate(
        {"source": {}, "capture": {"topic.prefix": "p"}, "kafka": {"bootstrap.servers": "n:1"}}
        | lakehouse
    )
    for name in ("totals", "somebody_elses"):
        (tmp_path / "views" / name).mkdir(parents=True)
    view_records(str(tmp_path), pytest.fail).write("totals", ViewRecord())
    listed = drop._lakehouse(settings)
    totals, records = tmp_path / "views" / "totals", tmp_path / "_millrace"
    assert [item.what for item in listed] == [
        f"lakehouse folder {totals}",
        f"lakehouse folder {records}",
    ]
    assert drop._remove(listed, []) == []
    assert [path.name for path in tmp_path.iterdir()] == ["views"]
    assert [path.name for path in (tmp_path / "views").iterdir()] == ["somebody_elses"]
