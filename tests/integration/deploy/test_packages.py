"""A clone → its source distribution and a wheel; the wheel in an environment outside the clone.

The wheel has the extension that `make setup` has compiled from the same sources; `make proof`
compiles it. Its libraries are those of this environment.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from cdc.compiled import digests, fast
from cdc.compiled.extension import INCLUDES
from cdc.errors import ExitCode
from deploy.local import packages
from deploy.local.jars import REPOSITORY
from deploy.local.processes import reserve_port

pytestmark = [pytest.mark.built, pytest.mark.xdist_group("packages")]
SOURCES = ("cdc", "compaction", "deploy", "millrace-stubs", "sinks", "snapshots")
OF_A_CLONE = ("deploy/local/", "deploy/demo/", "deploy/docs/")
"""What starts servers, and has no use without them."""
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
CONFIG = """
[source]
host = "127.0.0.1"
port = "{port}"
dbname = "none"
user = "nobody"
password = "none"
[capture]
"topic.prefix" = "installed"
[kafka]
"bootstrap.servers" = "127.0.0.1:{port}"
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages.build_sdist(Path(sys.executable), tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from the source distribution, with the extensions that there are."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    compiled = tree / "build" / f"lib.{platform}" / "cdc" / "compiled"
    compiled.mkdir(parents=True)
    for extension in (fast, digests):
        copy = shutil.copy(str(extension.__file__), compiled)
        os.utime(copy, (2**32, 2**32))  # newer than what it was made of
    build = "import setuptools.build_meta as build; build.build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


class Installed:
    """An environment with Millrace in it, and nothing of the clone."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self._environment = folder / "environment"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", self._environment], check=True
        )
        site = Path(sysconfig.get_path("platlib", "venv", {"platbase": str(self._environment)}))
        (site / "libraries.pth").write_text(sysconfig.get_path("platlib"))
        pip = (sys.executable, "-m", "pip", "--python", self._environment / "bin" / "python")
        subprocess.run(
            [*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel],
            check=True,
        )

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment: no other one is on PATH, no compiler and no Java."""
        program, *rest = map(str, words)
        return subprocess.run(
            [self._environment / "bin" / program, *rest],
            cwd=self.folder,
            env={"PATH": "", "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


def modules() -> set[str]:
    """The modules of the clone that a wheel is to have, by their paths."""
    paths = (path for name in SOURCES for path in (REPOSITORY / name).rglob("*.py"))
    names = {str(path.relative_to(REPOSITORY)) for path in paths}
    return {"millrace.py"} | {name for name in names if not name.startswith(OF_A_CLONE)}


def test_a_wheel_has_our_modules_and_nothing_of_a_clone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    own = {name for name in names if ".dist-info/" not in name}
    assert {name for name in own if name.endswith(".py")} == modules()
    suffixes = {Path(name).suffix for name in own}
    assert suffixes & {".c", ".java", ".sh"} == set()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    extensions = {f"cdc/compiled/{name}{suffix}" for name in INCLUDES}
    assert {name for name in own if name.endswith(".so")} == extensions
    assert {"sinks/jvm/millrace-sinks.jar", "sinks/jvm/jars.toml", "deploy/example.toml"} <= own
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}
    assert f"\nVersion: {VERSION}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_a_source_distribution_has_what_a_wheel_is_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert modules() <= names
    assert not any(name.startswith(("tests", "benchmarks")) for name in names)
    assert {Path(name).suffix for name in names} & {".c", ".so", ".pyc"} == set()
    for pattern in ("cdc/compiled/*.p[xy][ix]", "sinks/jvm/millrace/sinks/*.java"):
        assert {str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob(pattern)} <= names
    assert {
        "LICENSE",
        "NOTICE",
        "setup.py",
        "sinks/jvm/build.sh",
        "sinks/jvm/millrace-sinks.jar",
    } <= names
    assert {f"deploy/requirements/{name}.txt" for name in ("daemon", "jobs", "build")} <= names


def test_an_installed_wheel_runs_without_the_clone_a_compiler_and_java(
    installed: Installed,
) -> None:
    assert installed.run("millrace", "--version").stdout == f"millrace {VERSION}\n"
    assert "\n  merge " in installed.run("millrace", "--help").stdout
    (installed.folder / "millrace.toml").write_text(CONFIG.format(port=reserve_port()))
    (installed.folder / "millrace.toml").chmod(0o600)
    ended = installed.run("millrace", "run")
    assert ended.returncode == ExitCode.SOURCE_UNREACHABLE, ended.stderr
    look = (
        "import cdc.compiled.fast as fast, json; print(json.dumps([fast.__file__, fast.SOURCES]))"
    )
    file, sources = json.loads(installed.run("python", "-c", look).stdout)
    assert Path(file).is_relative_to(installed.folder)
    assert sources == fast.SOURCES


@pytest.mark.proof
def test_a_type_checker_knows_the_reader_of_an_installed_wheel(installed: Installed) -> None:
    (installed.folder / "program.py").write_text(
        "from millrace import changes\n"
        "for change in changes():\n    reveal_type(change.operation)\n"
        "for transaction in changes(transactions=True):\n    reveal_type(transaction.xid)\n"
    )
    python = installed.folder / "environment" / "bin" / "python"
    words = ["-m", "mypy", "--strict", "--python-executable", str(python), "program.py"]
    checked = subprocess.run(
        [sys.executable, *words], cwd=installed.folder, capture_output=True, text=True, check=False
    )
    operation, xid = re.findall(r'is "(.*)"', checked.stdout)
    assert "Literal['c']" in operation
    assert set(xid.split(" | ")) == {"int", "None"}
    assert checked.returncode == 0


def test_an_installed_wheel_says_how_to_get_jars(installed: Installed) -> None:
    look = "from sinks.spark.jars import driver_jars; driver_jars()"
    error = installed.run("python", "-c", look).stderr
    assert "millrace jars --repository URL" in error
    assert f"{installed.folder}/environment/share/millrace/jars/spark-" in error
    ended = installed.run("millrace", "jars")
    assert ended.returncode == ExitCode.CONFIG
    assert "--repository or MILLRACE_MAVEN_REPOSITORY" in ended.stderr
