"""A clone → dist/: the source distribution, a wheel for each Python here, locked requirements.

Everything is built from a copy without files of builds and editors, and each wheel from the source
distribution. So neither has a file that the other lacks. ``make dist`` has built our own jar
before, so nothing here needs Java.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy.local.jars import REPOSITORY, SetupError

NEWEST: Final = 14
"""Pythons 3.11 to 3.14."""
FILES: Final = (
    "CHANGELOG.md", "LICENSE", "MANIFEST.in", "NOTICE", "README.md", "millrace.py",
    "pyproject.toml", "setup.py",
)  # fmt: skip
FOLDERS: Final = ("cdc", "millrace-stubs", "compaction", "deploy", "sinks", "snapshots")
LOCKED: Final = REPOSITORY / "deploy" / "requirements"
TOOLS: Final = REPOSITORY / ".cache" / "dist"
"""An environment for each Python, with the packages of deploy/requirements/build.txt."""
_BUILD: Final = (
    "import sys, setuptools.build_meta as build; getattr(build, sys.argv[1])(sys.argv[2])"
)
_USABLE: Final = """
import ensurepip, pathlib, sys, sysconfig, venv
assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
print("%d.%d" % sys.version_info[:2])
"""


def main() -> int:
    """Build everything, and move it into dist/ at once."""
    pythons = dict(find_pythons())
    if not pythons:
        raise SetupError("no Python 3.11 or newer has venv and its C headers: run make setup")
    final = REPOSITORY / "dist"
    with tempfile.TemporaryDirectory() as folder:
        (built := Path(folder) / "dist").mkdir()
        build(pythons, built)
        shutil.rmtree(final, ignore_errors=True)
        shutil.move(built, final)
    for path in sorted(final.iterdir()):
        print(f"dist/{path.name}")
    return 0


def build(pythons: Mapping[str, Path], into: Path) -> None:
    """Build into a folder, with wheels for these Pythons."""
    tools = {version: _tools(version, python) for version, python in pythons.items()}
    sdist = build_sdist(next(iter(tools.values())), into)
    for version, python in tools.items():
        shutil.copy2(_wheel(version, python, sdist), into)
    for name in ("daemon", "jobs"):
        write_requirements(name, into)
    shutil.copy2(LOCKED / "build.txt", into)  # PySpark is a source distribution


def find_pythons() -> Iterator[tuple[str, Path]]:
    """Yield version → a Python of that version that can build an extension."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(11, NEWEST + 1):
        version = f"3.{minor}"
        folders = os.environ.get("PATH", "").split(os.pathsep)
        candidates = [Path(folder, f"python{version}") for folder in folders]
        candidates += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
        for python in filter(Path.exists, candidates):
            answer = subprocess.run(
                [python, "-c", _USABLE], capture_output=True, check=False, text=True
            )
            if answer.stdout.strip() == version:
                yield version, python
                break


def _tools(version: str, python: Path) -> Path:
    """Return the Python of an environment that can build a wheel."""
    requirements = LOCKED / "build.txt"
    folder = TOOLS / f"{version}-{_digest(requirements)[:12]}"
    if not folder.exists():
        print(f"dist: what builds a wheel, for Python {version}", flush=True)
        new = folder.with_name(f"{folder.name}.new")
        subprocess.run([python, "-m", "venv", "--clear", new], check=True)
        _pip(new / "bin" / "python", "install", "--require-hashes", "-r", requirements)
        new.rename(folder)
    return folder / "bin" / "python"


def build_sdist(python: Path, into: Path) -> Path:
    """Build the source distribution from the clone's current files."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "millrace")
        copy.mkdir()
        for name in FILES:
            shutil.copy2(REPOSITORY / name, copy / name)
        left_behind = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
        for name in FOLDERS:
            shutil.copytree(REPOSITORY / name, copy / name, ignore=left_behind)
        _run([python, "-c", _BUILD, "build_sdist", into], cwd=copy)
    (made,) = into.glob("*.tar.gz")
    return made


def _wheel(version: str, python: Path, sdist: Path) -> Path:
    """Return the wheel for a Python. Compilation takes a minute, so the last one is kept."""
    folder = python.parents[1] / "wheel" / content_digest(sdist)[:12]
    if not folder.exists():
        print(f"dist: a wheel for Python {version}", flush=True)
        shutil.rmtree(folder.parent, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=python.parents[1]) as work:
            repaired = Path(work, "repaired")
            repair(python, build_wheel(python, sdist, Path(work)), repaired)
            folder.parent.mkdir()
            repaired.rename(folder)
    (wheel,) = folder.iterdir()
    return wheel


def content_digest(sdist: Path) -> str:
    """Digest a source distribution's files, independent of their time."""
    total = hashlib.sha256()
    with tarfile.open(sdist) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            if (file := archive.extractfile(member)) is not None:
                digest = hashlib.sha256(file.read()).hexdigest()
                total.update(f"{member.name} {member.mode} {digest}\n".encode())
    return total.hexdigest()


def build_wheel(python: Path, sdist: Path, into: Path) -> Path:
    """Build the wheel for a Python that has the build tools."""
    _pip(python, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", into, sdist)
    (made,) = into.glob("*.whl")
    return made


def repair(python: Path, wheel: Path, into: Path) -> None:
    """Tag a wheel with the oldest Linux that it runs on, and add missing libraries."""
    into.mkdir()
    if sys.platform != "linux":
        shutil.copy2(wheel, into)
        return
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    _run([python, "-m", "auditwheel", "repair", "-w", into, wheel], env=environment)


def write_requirements(name: str, into: Path) -> None:
    """Write the locked requirements, and the packages that were built next to the file."""
    files = sorted([*into.glob("*.whl"), *into.glob("*.tar.gz")])
    version = files[0].name.split("-")[1]
    hashes = " \\\n".join(f"    --hash=sha256:{_digest(path)}" for path in files)
    locked = (LOCKED / f"{name}.txt").read_text("utf-8")
    text = f"--find-links .\nmillrace=={version} \\\n{hashes}\n{locked}"
    (into / f"{name}.txt").write_text(text, "utf-8")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pip(python: Path, *words: object) -> None:
    quiet = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    _run([python, *quiet, *words])


def _run(words: list[object], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run it, and print its output if it fails."""
    answer = subprocess.run(
        list(map(str, words)), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, cwd=cwd, env=env,
    )  # fmt: skip
    if answer.returncode:
        raise SetupError(
            f"{' '.join(map(str, words))} ended with {answer.returncode}:\n{answer.stdout}"
        )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"dist: {error}")
