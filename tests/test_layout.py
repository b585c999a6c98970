"""Allowed imports, by package (docs/decisions/0005-layout.md has the reasons).

A package imports only the packages of Millrace in its line: those below it in the order of the
data, never above. The extension's Cython sources are read, too. Imports inside functions, and those
only for type checkers, count like all others.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
RECORDS: Final = {"cdc.errors", "cdc.lines", "cdc.records"}
SETTINGS: Final = RECORDS | {"cdc.settings"}
EVENTS: Final = SETTINGS | {"cdc.compiled", "cdc.events", "cdc.values", "cdc.wal"}
CONTRACT: Final = SETTINGS | {"cdc.log"}
"""What sinks may know of the side that writes the log."""

ALLOWED: Final = {
    "cdc": set[str](),
    "cdc.lines": set[str](),
    "cdc.errors": {"cdc.lines"},
    "cdc.faults": set[str](),
    "cdc.records": {"cdc.errors"},
    "cdc.settings": RECORDS,
    "cdc.wal": RECORDS,
    "cdc.values": SETTINGS,
    "cdc.compiled": RECORDS | {"cdc.values", "cdc.wal"},
    "cdc.events": EVENTS,
    "cdc.postgres": SETTINGS | {"cdc.events", "cdc.wal"},
    "cdc.kafka": SETTINGS | {"cdc.compiled"},
    "cdc.log": SETTINGS | {"cdc.kafka"},
    "cdc.reader": SETTINGS | {"cdc.convert", "cdc.kafka", "cdc.log"},
    "cdc.transforms": SETTINGS | {"cdc.events"},
    "cdc.convert": EVENTS,
    "cdc.dead_letters": EVENTS | {"cdc.convert", "cdc.kafka", "cdc.log", "cdc.postgres"},
    "cdc.orders": EVENTS
    | {"cdc.convert", "cdc.dead_letters", "cdc.kafka", "cdc.log", "cdc.postgres"},
    "cdc.tables": EVENTS | {"cdc.convert", "cdc.dead_letters", "cdc.postgres"},
    "cdc.stream": EVENTS | {"cdc.convert", "cdc.faults", "cdc.tables"},
    "cdc.capture": EVENTS
    | {"cdc.convert", "cdc.dead_letters", "cdc.faults", "cdc.kafka", "cdc.log", "cdc.postgres"}
    | {"cdc.orders", "cdc.stream", "cdc.tables", "cdc.transforms"},
    "snapshots": EVENTS
    | {"cdc.convert", "cdc.faults", "cdc.kafka", "cdc.postgres", "cdc.stream", "cdc.tables"},
    "sinks.spark": RECORDS,
    "sinks.changes": SETTINGS | {"sinks.spark"},
    "sinks.run": CONTRACT | {"cdc.faults", "sinks.changes", "sinks.spark"},
    "sinks.log": CONTRACT | {"sinks.changes", "sinks.run", "sinks.spark"},
    "sinks.delta": CONTRACT
    | {"cdc.faults", "sinks.changes", "sinks.log", "sinks.run", "sinks.spark"},
    "sinks.search": CONTRACT
    | {"sinks.changes", "sinks.delta", "sinks.log", "sinks.run", "sinks.spark"},
    "sinks.debezium": CONTRACT
    | {"sinks.changes", "sinks.delta", "sinks.log", "sinks.run", "sinks.spark"},
    "sinks.views": CONTRACT
    | {"sinks.changes", "sinks.delta", "sinks.log", "sinks.run", "sinks.spark"},
    "sinks": CONTRACT | {"sinks"},
    "compaction": CONTRACT | {"cdc.kafka", "sinks"},
    "compaction.verify": CONTRACT | {"cdc.compiled", "cdc.postgres", "sinks", "snapshots"},
    "deploy": SETTINGS | {"cdc.convert", "sinks"},
    "deploy.docs": {"deploy.commands"},
    "deploy.local": CONTRACT | {"sinks.spark"},
    "deploy.demo": CONTRACT | {"deploy.local", "sinks"},
    "deploy.check": {"cdc", "deploy.asking", "deploy.commands", "deploy.status", "sinks"},
    "deploy.status": CONTRACT | {"cdc.kafka", "cdc.postgres", "deploy.asking", "sinks"},
    "deploy.commands": {"cdc", "compaction", "deploy.status", "sinks", "snapshots"},
    "deploy.views": SETTINGS | {"deploy.commands", "sinks"},
    "deploy.reading": RECORDS | {"cdc.reader", "cdc.settings", "deploy.commands"},
    "millrace": RECORDS | {"cdc.compiled", "cdc.reader", "deploy.commands"},
}
"""Package → what it may import beside itself; a package's name stands for all below it."""

LIBRARIES: Final = {
    "psycopg": {"cdc.capture", "cdc.orders", "cdc.postgres", "snapshots"}
    | {"compaction.verify", "deploy"},
    "confluent_kafka": {"cdc.convert", "cdc.kafka", "cdc.log", "cdc.reader", "deploy"},
    "pyspark": {"sinks", "compaction", "deploy"},
    "delta": {"sinks", "compaction", "deploy.local"},
    "opensearchpy": {"sinks.search", "compaction", "deploy"},
    "sqlglot": {"cdc.postgres"},
    "pydantic": {
        "compaction.verify",
        "cdc.records",
        "cdc.reader",
        "cdc.settings",
        "cdc.orders",
        "sinks",
        "deploy",
    },
}
"""Library → the packages that may import it. cdc.wal imports the standard library only."""
PURE: Final = {"cdc.wal", "cdc.errors", "cdc.faults"}
ROOTS: Final = ("cdc", "snapshots", "sinks", "compaction", "deploy")
CYTHON: Final = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+))", re.MULTILINE)


def sources() -> Iterator[tuple[str, Path]]:
    """Each module of the product, the extension's among them, and its file."""
    yield "millrace", ROOT / "millrace.py"
    for root in ROOTS:
        for path in sorted((ROOT / root).rglob("*.p[yx]*")):
            if path.suffix in {".py", ".pyi", ".pyx", ".pxi"}:
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES: Final = {module for module, _ in sources()}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The modules, or libraries, that a file imports anywhere in it."""
    return tuple(read_imports(path))


def read_imports(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix in {".pyx", ".pxi"}:
        for match in CYTHON.finditer(text):
            yield match[1] or match[2]
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in MODULES else base


@cache
def package(module: str) -> str:
    """The line of ALLOWED that a module comes under: the longest that it begins with."""
    names = [name for name in ALLOWED if f"{module}.".startswith(f"{name}.")]
    return max(names, key=len, default=module)


def within(name: str, packages: set[str]) -> bool:
    """Whether a module is one of these packages', or of their own."""
    return any(f"{name}.".startswith(f"{each}.") for each in packages)


def is_allowed(module: str, name: str) -> bool:
    """Whether a module may import another one, or a library."""
    own = package(module)
    library = name.split(".", maxsplit=1)[0]
    if library in {*ROOTS, "millrace"}:
        return package(name) == own or within(name, ALLOWED[own])
    if own in PURE and library not in sys.stdlib_module_names:
        return False
    return library not in LIBRARIES or within(module, LIBRARIES[library])


def test_a_module_imports_only_what_its_package_may() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in sources()
        for name in imports(path)
        if not is_allowed(module, name)
    ]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph: dict[str, set[str]] = {}
    for module, path in sources():
        graph.setdefault(module, set()).update(set(imports(path)) & MODULES - {module})
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " → ".join((*way[way.index(module) :], module))
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*way, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_each_package_has_a_line_and_few_modules() -> None:
    counts: dict[Path, int] = {}
    for module, path in sources():
        assert package(module) in ALLOWED, module
        if path.suffix == ".py" and path.name != "__init__.py":
            counts[path.parent] = counts.get(path.parent, 0) + 1
    assert {folder: count for folder, count in counts.items() if count > 18} == {}
    for folder in ("cdc", "sinks"):
        assert counts[ROOT / folder] <= 4
