"""Transactions too large for memory → their files, or an error if those can't be written."""

import errno
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import ConfigError, SpillError
from cdc.stream.in_progress import Spilled, check_spill


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(**_: Any) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)


@pytest.fixture
def few_files() -> Iterator[None]:
    """As the limit of open files often is at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_directory_that_is_not_there_is_a_wrong_setting(tmp_path: Path) -> None:
    check_spill(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        check_spill(tmp_path / "gone")


def test_a_full_disk_is_waited_for_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.ENOSPC)
    check_spill(tmp_path)
    kept = Spilled(tmp_path)
    kept.append(b"row")
    with pytest.raises(SpillError) as raised:
        kept.to_disk()
    assert raised.value.retry


def test_a_directory_that_vanishes_later_is_waited_for(tmp_path: Path) -> None:
    kept = Spilled(tmp_path / "gone")
    kept.append(b"row")
    with pytest.raises(SpillError, match="No such file"):
        kept.to_disk()


@pytest.mark.usefixtures("few_files")
def test_there_is_a_file_for_each_of_hundreds_of_transactions(tmp_path: Path) -> None:
    check_spill(tmp_path)
    kept = [Spilled(tmp_path) for _ in range(300)]
    for one in kept:
        one.append(b"row")
        one.to_disk()
    assert [b"".join(one.read()) for one in kept] == [b"row"] * 300
