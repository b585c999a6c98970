"""deploy/docs/mkdocs.yml → the site's navigation leads to every page, once."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[4]
NAVIGATION: Final = (ROOT / "deploy/docs/mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
OUTSIDE: Final = {"index.md", "contributing.md", "changelog.md", "benchmarks.md"}
"""Pages that the hooks make of the repository's own."""


def test_the_navigation_names_each_page_once() -> None:
    named = re.findall(r"(\S+\.md)$", NAVIGATION, re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(pages | OUTSIDE)


def test_each_decision_is_in_their_list() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\S+\.md)\)", (folder / "README.md").read_text("utf-8"))
    assert listed == sorted(path.name for path in folder.glob("0*.md"))
