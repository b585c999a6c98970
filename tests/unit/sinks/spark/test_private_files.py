"""Files in the temporary folder → readable only by this user, or refused."""

import os
import re
import shlex
import tempfile
from pathlib import Path

import pytest

from cdc.errors import ConfigError, ExitCode
from sinks.run.owner import one_at_a_time
from sinks.spark.private_files import own_folder, scratch_folder, submitted
from sinks.spark.session import SESSION


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_is_this_users_alone_and_stays(temporary: Path) -> None:
    folder = own_folder()
    assert folder == own_folder()
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("taken", ["file", "link", "foreign"])
def test_a_folder_that_somebody_else_may_have_made_is_refused(
    temporary: Path, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary / f"millrace-{os.getuid()}"
    if taken == "file":
        folder.touch()
    elif taken == "link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(temporary / "elsewhere")
    else:
        folder.mkdir(mode=0o700)
        other = os.getuid() + 1
        folder.rename(temporary / f"millrace-{other}")
        monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(ConfigError, match="temporary files") as refused:
        own_folder()
    assert refused.value.exit_code is ExitCode.CONFIG
    assert "set TMPDIR" in refused.value.remedy


@pytest.mark.parametrize("mode", [0o2770, 0o777, 0o755])
def test_a_folder_of_this_users_that_was_opened_is_closed(temporary: Path, mode: int) -> None:
    folder = temporary / f"millrace-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    assert own_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("error", [None, PermissionError(1, "Operation not permitted")])
def test_a_folder_that_cant_be_closed_to_others_is_refused(
    temporary: Path, error: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(_handle: int, _mode: int) -> None:
        if error is not None:
            raise error

    folder = temporary / f"millrace-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(os, "fchmod", keep)
    with pytest.raises(ConfigError, match="can't be closed") as refused:
        own_folder()
    assert "set TMPDIR" in refused.value.remedy


def test_a_lock_of_a_remote_lakehouse_is_in_it(temporary: Path) -> None:
    with one_at_a_time("s3a://bucket/lakehouse"):
        (lock,) = own_folder().iterdir()
        assert lock.suffix == ".lock"
    assert [path.name for path in temporary.iterdir()] == [own_folder().name]


def test_a_jvms_options_go_by_a_file_that_is_there_no_longer_than_needed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name mine pyspark-shell")
    with submitted({"spark.hadoop.fs.s3a.secret.key": "hunter2 \\#=\n𝄞é"}):
        words = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        assert words[-3:] == ["--name", "mine", "pyspark-shell"]
        path = Path(words[words.index("--properties-file") + 1])
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent == own_folder()
        assert path.read_text("ascii") == (
            "spark.hadoop.fs.s3a.secret.key="
            "hunter2\\u0020\\u005c\\u0023\\u003d\\u000a\\ud834\\udd1e\\u00e9\n"
        )
    assert not path.exists()
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--name mine pyspark-shell"
    assert list(temporary.glob("*/*")) == []


@pytest.mark.parametrize("words", ["--properties-file /p", "--name n --properties-file=/p"])
def test_a_properties_file_of_the_users_would_replace_ours_and_is_refused(
    temporary: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{words} pyspark-shell")
    with pytest.raises(ConfigError, match="PYSPARK_SUBMIT_ARGS"), submitted({}):
        pass
    assert list(temporary.iterdir()) == []


def test_options_of_a_process_that_died_are_removed_by_the_next_start(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died, writes = own_folder() / "died.conf", own_folder() / "writes.conf"
    died.touch()
    writes.touch()
    os.utime(died, (0, 0))
    with submitted({}):
        (lives,) = set(own_folder().iterdir()) - {died, writes}
        os.utime(lives, (0, 0))
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
        with submitted({}):
            assert lives.exists()
    assert list(temporary.glob("*/*")) == [writes]


def test_files_of_spark_of_a_process_that_died_are_removed_by_the_next_start(
    temporary: Path,
) -> None:
    died, begins = own_folder() / "spark-died", own_folder() / "spark-begins"
    for folder in (died, begins):
        (folder / "blockmgr-1" / "0a").mkdir(parents=True)
    (died / "blockmgr-1" / "0a" / "shuffle").write_text("rows")
    os.utime(died, (0, 0))
    lives = scratch_folder()
    os.utime(lives, (0, 0))
    other = scratch_folder()
    assert {*own_folder().iterdir()} == {begins, lives, other}
    assert {folder.stat().st_mode & 0o777 for folder in (lives, other)} == {0o700}
    assert lives.parent.parent == temporary


@pytest.mark.parametrize(
    "name",
    [
        *("fs.s3a.secret.key", "fs.s3a.access.key", "fs.azure.account.key.a.dfs.core.windows.net"),
        *("fs.gs.auth.service.account.private.key", "fs.s3a.encryption.key"),
        "fs.s3a.server-side-encryption.key",
    ],
)
def test_names_of_options_that_hide_a_secret_are_known(name: str) -> None:
    assert re.search(SESSION["spark.redaction.regex"], f"spark.hadoop.{name}")
