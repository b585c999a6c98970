"""Installed packages, and files that `make setup` fetches → checked against a lock before use."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[3]
CONTAINERS: Final = ROOT / "deploy/containers"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKED: Final = ROOT / "deploy/requirements"
EXTRAS: Final = {"daemon": ("avro",), "jobs": ("avro", "search", "spark")}
"""Locked requirements → the extras that they have."""


def locked(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Package → its pin, wherever it is needed, and its hashes."""
    text = path.read_text("utf-8").replace("\\\n", "")
    lines = [
        line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")
    ]
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in lines:
        pin, *hashes = (part.strip() for part in line.split("--hash="))
        name = canonicalize_name(Requirement(pin).name)
        assert re.search(r"==\S", pin), pin
        assert hashes, f"{name} has no hash"
        found[name] = (pin.partition(" ;")[0], tuple(sorted(hashes)))
    return found


@pytest.mark.parametrize("name", EXTRAS)
def test_what_is_installed_is_what_was_tested(name: str) -> None:
    tested = locked(ROOT / "requirements.txt")
    installed = locked(LOCKED / f"{name}.txt")
    assert {name: tested[name] for name in installed} == installed


@pytest.mark.parametrize("name", EXTRAS)
def test_an_installation_has_what_the_project_asks_for(name: str) -> None:
    project = PROJECT["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS[name]:
        wanted += project["optional-dependencies"][extra]
    names = {canonicalize_name(Requirement(text).name) for text in wanted}
    assert names <= locked(LOCKED / f"{name}.txt").keys()


def test_what_builds_the_extension_is_locked() -> None:
    names = {
        canonicalize_name(Requirement(text).name) for text in PROJECT["build-system"]["requires"]
    }
    assert names <= set(locked(LOCKED / "build.txt"))


def test_pip_takes_nothing_from_an_index_without_a_hash() -> None:
    dockerfile = (CONTAINERS / "Dockerfile").read_text("utf-8")
    calls = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) .*", dockerfile)
    assert len(calls) >= 6
    assert [
        call for call in calls if "--require-hashes" not in call and "--no-index" not in call
    ] == []
    building = [call for call in calls if call.startswith("pip wheel")]
    assert [call for call in building if "--no-build-isolation" not in call] == []


@pytest.mark.parametrize("path", ["Makefile", "deploy/containers/Dockerfile"])
def test_maven_takes_nothing_whose_checksum_is_wrong(path: str) -> None:
    calls = re.findall(r"\bmvn .*", (ROOT / path).read_text("utf-8"))
    assert calls
    assert [call for call in calls if " -C " not in call] == []
