"""An archive of classes → made if none fits the jars."""

import os
from pathlib import Path

import pytest

from sinks.spark import classes


@pytest.mark.parametrize(
    ("archive", "made"), [(None, 1), (b"", 1), (b"classes", 0)], ids=["none", "empty", "whole"]
)
def test_an_archive_is_made_unless_one_is_there(
    archive: bytes | None, made: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty file is what a run without Java has left."""
    jar, file = tmp_path / "delta.jar", tmp_path / "classes.jsa"
    jar.touch()
    os.utime(jar, (0, 0))
    if archive is not None:
        file.write_bytes(archive)
    calls: list[str] = []

    def make_archive() -> str:
        calls.append("made")
        return ""

    monkeypatch.setattr(classes, "driver_jars", lambda: [jar])
    monkeypatch.setattr(classes, "class_archive", lambda: file)
    monkeypatch.setattr(classes, "make_archive", make_archive)
    classes.archive_classes(print)
    assert len(calls) == made
