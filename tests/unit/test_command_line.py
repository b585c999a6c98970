"""Arguments → what the command line prints and writes before it needs any server."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdc.errors import ConfigError
from cdc.settings import load
from millrace import app


def test_version_is_the_packages() -> None:
    found = CliRunner().invoke(app, ["--version"])
    assert found.exit_code == 0
    assert found.output.startswith("millrace ")


def test_init_writes_a_configuration_that_loads_and_keeps_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "millrace.toml"
    assert CliRunner().invoke(app, ["init", str(path)]).exit_code == 0
    monkeypatch.setenv("MILLRACE_PASSWORD", "secret")
    assert load(path).capture.topic_prefix
    path.write_text("changed = 1\n")
    again = CliRunner().invoke(app, ["init", str(path)])
    assert isinstance(again.exception, ConfigError)
    assert path.read_text() == "changed = 1\n"
