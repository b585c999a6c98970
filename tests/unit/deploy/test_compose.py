"""The compose files → services that restart without help, and existing commands."""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from cdc.errors import ExitCode
from deploy.commands.app import app

CONTAINERS: Final = Path(__file__).parents[3] / "deploy/containers"
FILES: Final = ("compose.production.yaml", "quickstart/compose.yaml")
OWN: Final = {"daemon", "merge", "compact"}


def services(file: str) -> dict[str, str]:
    """Service → its lines, of a file that is written as ours are."""
    _, _, after = (CONTAINERS / file).read_text("utf-8").partition("\nservices:\n")
    block = after.partition("\nvolumes:\n")[0]
    _, *parts = re.split(r"^  ([a-z]+):\n", block, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def loop(file: str) -> str:
    """What the shell of compaction gets."""
    return services(file)["compact"].partition("- |\n")[2].replace("$$", "$")


def commands(file: str) -> list[list[str]]:
    text = (CONTAINERS / file).read_text("utf-8")
    listed = re.findall(r"^    command: \[(\w+, .*)\]$", services(file)["merge"], re.MULTILINE)
    said = re.findall(r"^ +millrace (.*)$", text, re.MULTILINE)
    return [line.split(", ") for line in listed] + [line.split() for line in said]


@pytest.mark.parametrize("file", FILES)
def test_services_are_started_again_and_have_time_to_end(file: str) -> None:
    common = (CONTAINERS / file).read_text("utf-8").partition("x-millrace: &millrace\n")[2]
    common = common.partition("\n\n")[0]
    assert "\n  restart: unless-stopped" in common
    assert "\n  stop_grace_period: 90s" in common
    found = services(file)
    assert found.keys() >= OWN
    for name in OWN:
        assert found[name].startswith("    <<: *millrace\n")
        assert "restart:" not in found[name]


@pytest.mark.parametrize("file", FILES)
def test_commands_are_those_of_the_command_line(file: str) -> None:
    found = commands(file)
    assert [words[0] for words in found][-1] == "compact"
    for words in [*found, *of_images()]:
        ended = CliRunner().invoke(app, [*words, "--help"])
        assert ended.exit_code == 0, (words, ended.output)


def of_images() -> list[list[str]]:
    """What images run by default, which services take over."""
    dockerfile = (CONTAINERS / "Dockerfile").read_text("utf-8")
    listed = re.findall(r'^CMD \["((?:run|merge)", .*)"\]$', dockerfile, re.MULTILINE)
    assert len(listed) == 2
    return [line.split('", "') for line in listed]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("code", [0, ExitCode.NOTHING_TO_DO, ExitCode.BUSY, ExitCode.SINK])
def test_compaction_comes_before_the_first_sleep_and_tells_a_failure(
    file: str, code: int, tmp_path: Path
) -> None:
    for name, script in (("millrace", f'echo "$@"; exit {code}'), ("sleep", "kill $PPID")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    ended = subprocess.run(
        ["/bin/sh", "-c", loop(file)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert ended.stdout == "compact --config /etc/millrace/millrace.toml\n"
    told = f"compact ended with exit code {int(code)}\n" if code == ExitCode.SINK else ""
    assert ended.stderr == told
