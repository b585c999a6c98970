"""The style that a program can check (docs/decisions/0005-layout.md has the layout)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("cdc", "sinks", "snapshots", "compaction", "deploy", "benchmarks", "tests")
GIVEN = ROOT / "tests/golden/compare.py"
"""Comes with the recordings, unchanged."""
FILES = sorted(
    [ROOT / "millrace.py", *(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))]
)
FILES.remove(GIVEN)
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
EMPTY_WORDS = {"utils", "util", "common", "helpers", "helper", "misc"}


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_small_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_LINES_MAX
    assert not set(path.relative_to(ROOT).with_suffix("").parts) & EMPTY_WORDS
    if text:
        assert ast.get_docstring(ast.parse(text)), "no module docstring"
    for function in functions(path):
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{function.name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_ignore_is_a_blanket_one(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if path != Path(__file__):
            assert not line.rstrip().endswith(("# noqa", "# type: ignore")), line


def test_imports_find_our_packages_and_nobody_elses() -> None:
    import cdc

    assert Path(cdc.__file__ or "").parent.parent == ROOT
