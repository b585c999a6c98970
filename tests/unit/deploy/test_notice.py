"""NOTICE has everything that an installation brings in addition to our code, by its metadata."""

import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from deploy.local.jars import REPOSITORY
from deploy.local.notice import BUNDLED, NOTICE, render, requirements
from sinks.spark.jars import manifest


def test_notice_names_each_package_and_jar_with_its_licence() -> None:
    text = NOTICE.read_text("utf-8")
    assert text == render(), "make notice"
    entries = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    lines = {entry[0]: entry[1] for entry in entries if len(entry) == 2}
    names = {*requirements("daemon"), *requirements("jobs")}
    assert names | {f"{jar.group}:{jar.artifact}" for jar in manifest().jars} <= lines.keys()


@pytest.mark.parametrize("package", ["confluent-kafka", "psycopg-binary"])
def test_notice_names_the_libraries_that_a_package_carries(package: str) -> None:
    spec = find_spec(package.replace("-", "_"))
    assert spec is not None
    folder = Path(spec.origin or "").parents[1] / f"{package.replace('-', '_')}.libs"
    names = {path.name.rpartition(".so")[0].rpartition("-")[0] for path in folder.iterdir()}
    assert names
    assert names <= BUNDLED[package].keys()


def test_the_project_is_licensed_as_its_licence_says() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license"] == "Apache-2.0"
    text = (REPOSITORY / "LICENSE").read_text("utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert all((REPOSITORY / name).exists() for name in project["license-files"])
