"""Files and modules that documentation, docstrings and comments name → they exist.

A source file is named by its path from the repository's root, or from the folder of the file that
names it. A dotted name that begins with a package is a module, or an object in one. A page's links
have a target.
"""

import re
from pathlib import Path
from typing import Final

from tests.test_proofs import headings

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("cdc", "snapshots", "sinks", "compaction", "deploy", "benchmarks", "tests")
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *(ROOT / "docs").rglob("*.md"),
]
SOURCES: Final = [
    ROOT / "millrace.py",
    *(path for name in PACKAGES for path in (ROOT / name).rglob("*.p[yx]*")),
]
TEXTS: Final = sorted(
    path for path in {*PAGES, *SOURCES} if path.suffix in {".md", ".py", ".pyx", ".pxi"}
)
FILE: Final = re.compile(r"(?<![\w./:-])(?:[\w-]+/)*(?!__init__)[\w-]+\.(?:pyx?|pxi|java)\b")
MODULE: Final = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
LINK: Final = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
SAID: Final = re.compile(r'"""[^"]*(?:"{1,2}[^"]+)*"""|(?:^|  )# .*$', re.MULTILINE)
"""Texts in three quotes, and comments."""
OTHERS: Final = ("compaction.lag",)
"""What isn't a module, though it begins like one."""


def said(path: Path) -> str:
    """What a file says to people."""
    text = path.read_text(encoding="utf-8")
    return "\n".join(SAID.findall(text)) if path.suffix == ".py" else text


def is_module(name: str) -> bool:
    """Whether a dotted name is a package, a module, or something that a module defines."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        files = [path.with_suffix(suffix) for suffix in (".py", ".pyx")]
        files = [file for file in [*files, path / "__init__.py"] if file.is_file()]
        if files:
            text = files[0].read_text(encoding="utf-8")
            return all(_has(text, part) for part in parts[count:])
    return False


def _has(text: str, name: str) -> bool:
    words = r"(?:cp?def |def |class |from |import ).*"
    return bool(re.search(rf"^\s*(?:{words}\b{name}\b|{name}\b\s*[:=,(])", text, re.MULTILINE))


def leads(path: Path, page: str, anchor: str) -> bool:
    """Whether a page's link to another one, or to itself, leads somewhere."""
    target = (path.parent / page).resolve() if page else path
    if not target.exists():
        return False
    return not anchor or anchor in headings(str(target.relative_to(ROOT)))


def missing(path: Path) -> set[str]:
    """The names in a file that mean nothing."""
    text = said(path)
    files = {match[0] for match in FILE.finditer(text)}
    modules = {match[0] for match in MODULE.finditer(text)}
    links = LINK.findall(text) if path.suffix == ".md" else []
    return {
        *(f"{page}#{anchor}" for page, anchor in links if not leads(path, page, anchor)),
        *(
            name
            for name in files
            if not ((ROOT / name).is_file() or (path.parent / name).is_file())
        ),
        *(name for name in modules if not (name.startswith(OTHERS) or is_module(name))),
    }


def test_files_and_modules_that_are_named_exist() -> None:
    stale = {str(path.relative_to(ROOT)): names for path in TEXTS if (names := missing(path))}
    assert stale == {}
