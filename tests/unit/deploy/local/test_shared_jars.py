"""Sets of jars → folders named by their lists, which clones share and no clone changes."""

import os
import shutil
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from deploy.local.jars import REPOSITORY, folder_name
from deploy.local.manifest import coordinates
from sinks.spark.jars import manifest

MAVEN = """#!/bin/sh
for word; do case $word in -DoutputDirectory=*) folder=${word#*=};; esac; done
echo "$MARK" >>"$LOG"
cat deploy/local/jars/kafka/pom.xml >"$folder/broker.jar"
case $MAVEN_OPTS in *-Djansi.noreset=true*) ;; *) printf '\\033[0m';; esac
"""
"""What stands for Maven: its jar has what the pom has, and it resets colours as Maven does."""

Clone = Callable[[str, str], Path]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """Make a clone whose broker has a version, and return the broker's jar after `make`."""
    (tmp_path / "bin").mkdir()
    maven = tmp_path / "bin" / "mvn"
    maven.write_text(MAVEN)
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MILLRACE_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))

    def made(name: str, version: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(REPOSITORY / "deploy" / "local" / "jars", folder / "deploy/local/jars")
        shutil.copy(REPOSITORY / "Makefile", folder)
        pom = folder / "deploy/local/jars/kafka/pom.xml"
        pom.write_text(pom.read_text().replace("4.3.1", version))
        digest = sha256(pom.read_bytes()).hexdigest()[:12]
        target = tmp_path / "jars" / f"kafka-{digest}"
        command = ["make", "--silent", str(target / ".complete")]
        environment = os.environ | {"MARK": name}
        output = subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True
        ).stdout
        assert b"\x1b" not in output
        return target / "broker.jar"

    return made


def test_a_clone_takes_no_jar_from_under_another_clones_jvm(clone: Clone, tmp_path: Path) -> None:
    """MILLRACE_JARS is shared: one clone reads, another one fetches an older list, then a newer."""
    ours = clone("ours", "4.3.1")
    with ours.open("rb") as open_file:
        before = os.fstat(open_file.fileno())
        theirs = clone("theirs", "4.2.1")
        assert theirs != ours
        assert "4.2.1" in theirs.read_text()
        clone("third", "4.3.1")
        now = ours.stat()
    same = ("st_ino", "st_mtime_ns", "st_size", "st_nlink")
    assert [getattr(now, name) for name in same] == [getattr(before, name) for name in same]
    assert (tmp_path / "log").read_text().split() == ["ours", "theirs"], "the third has ours"
    left = {path.name for path in (tmp_path / "jars").iterdir()}
    assert left == {ours.parent.name, theirs.parent.name}


def test_a_folder_that_isnt_whole_is_named(clone: Clone) -> None:
    broker = clone("ours", "4.3.1")
    (broker.parent / ".complete").unlink()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        clone("theirs", "4.3.1")
    told = f"setup: {broker.parent} exists, but is incomplete: remove it and run make again"
    assert failed.value.stderr.decode().splitlines()[0] == told
    assert [path.name for path in broker.parents[1].iterdir()] == [broker.parent.name]


def test_jars_of_the_wheel_are_those_of_the_clone() -> None:
    """The pom is where versions stand; `make manifest` takes them over, with the checksums."""
    assert manifest().folder == folder_name("spark"), "make manifest"
    listed = [f"{jar.group}:{jar.artifact}:{jar.version}" for jar in manifest().jars]
    assert listed == coordinates(), "make manifest"
    assert all(len(jar.sha256) == 64 for jar in manifest().jars)
