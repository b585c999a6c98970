"""The records of views → their folders, and folders with other owners."""

import json
from pathlib import Path

import pytest

from cdc.settings import LakehouseSettings
from sinks.run.owner import LOG_FOLDER, application
from sinks.views.records import ViewRecord, made_folders, view_records


def test_only_folders_that_views_were_written_to_are_theirs(tmp_path: Path) -> None:
    lakehouse = LakehouseSettings.model_validate({"path": str(tmp_path)})
    records = view_records(lakehouse.path, pytest.fail)
    for name in ("sums", "strange"):
        records.write(name, ViewRecord())
    folders = {
        "sums": application("t", "views.sums"),
        "sums_history": application("t", "views.sums_history"),
        "strange": "another/program",
        "other": application("t", "views.other"),
    }
    for name, of in folders.items():
        log = tmp_path / "views" / name / LOG_FOLDER
        log.mkdir(parents=True)
        commit = json.dumps({"txn": {"appId": of, "version": 1}})
        (log / f"{0:020}.json").write_text(commit)
    (tmp_path / "views" / "strange_history").mkdir()
    found = made_folders(lakehouse, "t", records)
    assert {path.name: is_own for path, is_own in found.items()} == {
        "sums": True,
        "sums_history": True,
        "strange": False,
    }
