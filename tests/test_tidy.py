"""The style that a program can check (docs/decisions/0005-layout.md has the layout)."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.xdist_group("tidy")  # one worker parses all files, and once
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


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Outline:
    """What the tests want of a file's syntax, whose whole tree is too large to keep."""

    docstring: str | None
    functions: tuple[tuple[str, int], ...]
    """Name and lines of each; methods of several classes have one name."""
    types: tuple[str, ...]


@cache
def outline(path: Path) -> Outline:
    tree = ast.parse(text_of(path))
    functions = tuple(
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    )
    return Outline(ast.get_docstring(tree), functions, tuple(type_names(tree)))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_file_is_small_and_has_a_plain_name() -> None:
    sizes = {name_of(path): len(text_of(path).splitlines()) for path in FILES}
    assert {name: lines for name, lines in sizes.items() if lines > FILE_LINES_MAX} == {}
    names = {name_of(path): set(Path(name_of(path)).with_suffix("").parts) for path in FILES}
    assert [name for name, words in names.items() if words & EMPTY_WORDS] == []


def test_a_file_says_what_it_is_for() -> None:
    written = [path for path in FILES if text_of(path)]
    assert [name_of(path) for path in written if not outline(path).docstring] == []


def test_a_function_fits_a_screen() -> None:
    long = [
        f"{name_of(path)}: {name} has {lines} lines"
        for path in FILES
        for name, lines in outline(path).functions
        if lines > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_ignore_is_a_blanket_one() -> None:
    blanket = [
        f"{name_of(path)}: {line}"
        for path in FILES
        if path != Path(__file__)
        for line in text_of(path).splitlines()
        if line.rstrip().endswith(("# noqa", "# type: ignore"))
    ]
    assert blanket == []


def test_imports_find_our_packages_and_nobody_elses() -> None:
    import cdc

    assert Path(cdc.__file__ or "").parent.parent == ROOT


def type_names(tree: ast.Module) -> Iterator[str]:
    """The classes and type aliases of a module; an imported type's alias is none of its own."""
    for node in tree.body:
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
        for name in outline(path).types:
            modules[name.lstrip("_")].append(name_of(path))
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


def test_no_module_or_type_has_a_private_word_for_its_name() -> None:
    private = set()
    for path in PRODUCT:
        where = name_of(path)
        for name in (path.stem, *outline(path).types):
            words = {word.lower() for word in re.findall("[A-Z]?[a-z]+", name)}
            if words & PRIVATE_WORDS and "dead" not in words:
                private.add((where, name))
    assert private == set()
