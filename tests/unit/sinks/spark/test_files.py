"""Small texts in a folder → the leftovers of processes that died."""

import os
from pathlib import Path

from sinks.spark.files import LocalFiles


def test_what_a_process_has_left_that_died_while_it_wrote_goes_some_day(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.replace("kept.json", "{}")
    old, young = tmp_path / ".a.new", tmp_path / ".b.new"
    for path in (old, young):
        path.write_text("{")
    os.utime(old, (0, 0))
    os.utime(tmp_path / "kept.json", (0, 0))
    files.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.new", "kept.json"]
