"""The style that a program can check (docs/decisions/0005-layout.md has the layout)."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
PRODUCT: Final = [
    path for path in FILES if path.relative_to(ROOT).parts[0] not in {"benchmarks", "tests"}
]
"""The extension's stub isn't among these: its classes bear the names of those that they replace."""
PRIVATE_WORDS: Final = frozenset({
    "asked", "bag", "carriers", "counted", "elders", "fitted", "found", "hold", "known", "late",
    "letter", "letters", "look", "looked", "part", "parts", "place", "reached", "seen", "spliced",
    "stand", "told", "wishes", "work",
})  # fmt: skip
"""A reader who hasn't written the code can't guess what they mean in a name."""


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


def type_names(path: Path) -> Iterator[str]:
    """The classes and type aliases of a module; an imported type's alias is none of its own."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if re.fullmatch(r"_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name):
                if all(getattr(part, "attr", None) != name for part in ast.walk(value)):
                    yield name


def test_a_type_name_has_one_meaning() -> None:
    """One name stands in one module, with or without a leading underscore."""
    modules: dict[str, list[str]] = defaultdict(list)
    for path in PRODUCT:
        for name in type_names(path):
            modules[name.lstrip("_")].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


def test_no_module_or_type_has_a_private_word_for_its_name() -> None:
    private = set()
    for path in PRODUCT:
        where = str(path.relative_to(ROOT))
        for name in (path.stem, *type_names(path)):
            words = {word.lower() for word in re.findall("[A-Z]?[a-z]+", name)}
            if words & PRIVATE_WORDS and "dead" not in words:
                private.add((where, name))
    assert private == set()
