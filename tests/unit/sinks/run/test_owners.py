"""A lakehouse's folder, and a run's owner → whether the run may write there."""

import os
from pathlib import Path

import pytest

from cdc.errors import ConfigError, DiskError
from sinks.run.owner import one_at_a_time, require_owner


def test_root_writes_nothing_into_another_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    real = Path.stat
    owners = {tmp_path: 65534}

    def stat(path: Path, **more: bool) -> os.stat_result:
        found = list(real(path, **more))
        found[4] = owners.get(path, 0)
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", stat)
    location = str(tmp_path / "lake" / "deep")
    with pytest.raises(ConfigError, match=r"root.*belongs to user[\s\S]*runuser -u") as error:
        require_owner(location)
    assert error.value.where == str(tmp_path), "the nearest folder that there is"
    owners.clear()
    require_owner(location)
    require_owner("s3a://bucket/lake")


def test_a_lock_that_another_users_run_has_left_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DiskError, match=r"_millrace/lock[\s\S]*chown -R") as error:
        one_at_a_time(str(tmp_path)).__enter__()
    assert error.value.remedy.endswith(f" {tmp_path}")
