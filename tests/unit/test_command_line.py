"""Arguments → what the command line prints and writes before it needs any server."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdc.errors import ConfigError, SourceUnreachableError
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


def test_only_the_daemon_takes_the_port_where_it_answers_for_its_health(tmp_path: Path) -> None:
    path = tmp_path / "millrace.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(
            f"""
            source = {{ host = "127.0.0.1", port = 1, user = "u", dbname = "d" }}
            capture = {{ "topic.prefix" = "t" }}
            kafka = {{ "bootstrap.servers" = "127.0.0.1:1" }}
            health = {{ listen = "127.0.0.1:{port}" }}
            """
        )
        ended = {
            words: CliRunner().invoke(app, [*words.split(), "--config", str(path)]).exception
            for words in ("run", "new-epoch", "new-epoch --yes", "snapshot")
        }
    assert isinstance(ended.pop("run"), ConfigError)
    assert {type(error) for error in ended.values()} == {SourceUnreachableError}
