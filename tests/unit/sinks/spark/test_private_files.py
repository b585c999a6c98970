"""Files in the temporary folder → this user's alone, or refused."""

import os
import shlex
import tempfile
from pathlib import Path

import pytest

from cdc.errors import ConfigError, ExitCode
from sinks.run.plans import one_at_a_time
from sinks.spark.private_files import own_folder, submitted


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_is_this_users_alone_and_stays(temporary: Path) -> None:
    folder = own_folder()
    assert folder == own_folder()
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("taken", ["open", "file", "link", "foreign"])
def test_a_folder_that_somebody_else_may_have_made_is_refused(
    temporary: Path, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary / f"millrace-{os.getuid()}"
    if taken == "open":
        folder.mkdir()
        folder.chmod(0o770)
    elif taken == "file":
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
