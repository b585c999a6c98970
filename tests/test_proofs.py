"""docs/proofs.toml → each promise has tests that prove it, which exist and run in its tier.

Files are parsed and never imported, so this needs no server, and takes a second.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROOF = "proof"
"""Marks what `make test` leaves out."""
NEVER_RUN = {"skip", "xfail"}
GUARANTEES = "docs/explanation/guarantees.md"
WITHOUT_PROMISES = {
    "docs/explanation/architecture.md",
    "docs/explanation/performance.md",
    "docs/explanation/runs.md",
    "docs/guides/move-from-debezium.md",
    "docs/guides/search.md",
    "docs/guides/sizing.md",
    "docs/reference/glossary.md",
}
"""How it works, figures, a tutorial, terms, and what other pages promise."""
FIELDS = {"promise", "where", "tests", "tier"}
with (ROOT / "docs" / "proofs.toml").open("rb") as file:
    ROWS: list[dict[str, Any]] = tomllib.load(file)["promise"]


@cache
def headings(page: str) -> dict[str, str]:
    """Headings by what links call them."""
    text = re.sub(
        r"^```.*?^```",
        "",
        (ROOT / page).read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-"): title for title in titles}


@cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def marks(module: ast.Module, test: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """The marks of a test and of its module, by name."""
    given = list(test.decorator_list)
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            value = node.value
            given += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    for mark in given:
        name = ast.unparse(mark.func if isinstance(mark, ast.Call) else mark)
        if name.startswith("pytest.mark."):
            yield name.removeprefix("pytest.mark."), mark


def is_unconditional(name: str, mark: ast.expr) -> bool:
    """Whether a mark keeps a test from running, or from failing, wherever it is run."""
    if not isinstance(mark, ast.Call):
        return name in NEVER_RUN
    keywords = [word.value for word in mark.keywords if word.arg == "condition"]
    conditions = [] if name == "skip" else [*mark.args[:1], *keywords]
    if name == "skipif" or conditions:
        constants = [node.value for node in conditions if isinstance(node, ast.Constant)]
        return name in {"skipif", "xfail"} and any(constants)
    return name in NEVER_RUN


def is_given_up(body: list[ast.stmt]) -> bool:
    """Whether statements of a module or a test skip it, under no condition."""
    calls = [ast.unparse(node.value) for node in body if isinstance(node, ast.Expr)]
    return any(call.startswith(("pytest.skip(", "pytest.xfail(")) for call in calls)


def objections(module: ast.Module, name: str, tier: str) -> list[str]:
    """What is wrong with naming this test as a proof of that tier."""
    tests = [n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == name]
    if len(tests) != 1 or not name.startswith("test_"):
        return ["there is no such test"]
    given = dict(marks(module, tests[0]))
    wrong = [f"mark {mark}" for mark in given if is_unconditional(mark, given[mark])]
    if is_given_up(module.body) or is_given_up(tests[0].body):
        wrong.append("it skips itself")
    if (tier == "proof") != (PROOF in given):
        wrong.append(f"it isn't of tier {tier}")
    return wrong


def wrong_with(row: dict[str, Any]) -> dict[str, list[str]]:
    """What is wrong with a row, by the test that it names."""
    if row.keys() != FIELDS or row["tier"] not in {"test", "proof"} or not row["tests"]:
        return {"its fields": [str(row)]}
    wrong = {}
    for proof in row["tests"]:
        path, _, name = proof.partition("::")
        if not (ROOT / path).is_file():
            wrong[proof] = ["there is no such file"]
        elif reasons := objections(parsed(path), name, row["tier"]):
            wrong[proof] = reasons
    return wrong


def test_each_proof_is_a_test_that_runs() -> None:
    wrong = {row["promise"]: wrong_with(row) for row in ROWS}
    assert {promise: reasons for promise, reasons in wrong.items() if reasons} == {}


def test_each_promise_stands_under_a_heading() -> None:
    places = [row["where"].partition("#") for row in ROWS]
    assert [page for page, _, _ in places if not (ROOT / page).is_file()] == []
    assert [(page, anchor) for page, _, anchor in places if anchor not in headings(page)] == []


def test_each_promise_has_a_proof_in_make_test() -> None:
    small = {row["promise"] for row in ROWS if row["tier"] == "test"}
    assert [row["promise"] for row in ROWS if row["promise"] not in small] == []


def test_a_promise_has_one_row_a_tier_and_one_heading() -> None:
    rows = [(row["promise"], row["tier"]) for row in ROWS]
    assert [row for row in rows if rows.count(row) > 1] == []
    where = {(row["promise"], row["where"]) for row in ROWS}
    assert len(where) == len({promise for promise, _ in where})


def test_each_guarantee_and_each_page_has_rows() -> None:
    places = {row["where"] for row in ROWS}
    numbered = [anchor for anchor, title in headings(GUARANTEES).items() if title[0].isdigit()]
    assert len(numbered) == 13
    assert [anchor for anchor in numbered if f"{GUARANTEES}#{anchor}" not in places] == []
    paths = (ROOT / "docs").rglob("*.md")
    pages = {"README.md", *(str(path.relative_to(ROOT)) for path in paths)}
    pages = {page for page in pages if not page.startswith("docs/decisions/")}
    assert pages - WITHOUT_PROMISES - {place.partition("#")[0] for place in places} == set()


@pytest.mark.parametrize(
    ("source", "tier"),
    [
        ("def test_other(): ...", "test"),
        ("@pytest.mark.skip\ndef test_it(): ...", "test"),
        ("@pytest.mark.skip('why')\ndef test_it(): ...", "test"),
        ("@pytest.mark.skipif(True, reason='why')\ndef test_it(): ...", "test"),
        ("@pytest.mark.xfail(reason='why')\ndef test_it(): ...", "test"),
        ("pytestmark = pytest.mark.skip\ndef test_it(): ...", "test"),
        ("pytestmark = [pytest.mark.xfail]\ndef test_it(): ...", "test"),
        ("pytest.skip('why', allow_module_level=True)\ndef test_it(): ...", "test"),
        ("def test_it():\n    pytest.skip('why')", "test"),
        ("def test_it(): ...", "proof"),
        (f"@pytest.mark.{PROOF}\ndef test_it(): ...", "test"),
        (f"pytestmark = pytest.mark.{PROOF}\ndef test_it(): ...", "test"),
    ],
)
def test_what_is_no_proof_is_refused(source: str, tier: str) -> None:
    assert objections(ast.parse(source), "test_it", tier) != []


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): ...",
        "@pytest.mark.skipif(not LINUX, reason='why')\ndef test_it(): ...",
        "@pytest.mark.xfail(not LINUX, reason='why')\ndef test_it(): ...",
        "def test_it():\n    if not LINUX:\n        pytest.skip('why')",
    ],
)
def test_what_runs_somewhere_is_a_proof(source: str) -> None:
    assert objections(ast.parse(source), "test_it", "test") == []
