"""Reasons that make a table doubtful → for each, some run has a daemon that is blind to it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from deploy.local.jars import REPOSITORY
from tests.ddl_chaos.blind import BLINDNESSES, UNSHOWN
from tests.ddl_chaos.harmless import HARMLESS
from tests.ddl_chaos.kinds import KINDS, SINCE

DETECTORS: Final = (
    "cdc/tables/doubts.py",
    "cdc/tables/reads.py",
    "snapshots/inspection.py",
    "snapshots/catalog_check.py",
)


MAKERS: Final = ("Cause", "Doubt", "_of_leaf")


class Reasons(ast.NodeVisitor):
    """The texts that a module's calls of Cause and the like are given; … for what they name."""

    def __init__(self, module: ast.Module) -> None:
        self.found: set[str] = set()
        self._named: dict[str, list[ast.expr]] = defaultdict(list)
        for node in ast.walk(module):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._named[name].append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._named[name].append(value)
                case ast.AugAssign(target=ast.Name(id=name), value=value):
                    self._named[name].append(value)
                case ast.FunctionDef(name=name):
                    returns = (each for each in ast.walk(node) if isinstance(each, ast.Return))
                    self._named[name] += [each.value for each in returns if each.value is not None]
        self.visit(module)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in MAKERS:
            given = [
                *node.args[:1],
                *(word.value for word in node.keywords if word.arg == "reason"),
            ]
            self.found |= {text for text in self._texts(given[0]) if text}
        self.generic_visit(node)

    def _texts(self, value: ast.expr) -> Iterator[str]:
        match value:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                texts = [""]
                for part in parts:
                    of_part = [*self._texts(part)] or ["…"]
                    texts = [text + more for text in texts for more in of_part]
                yield from texts
            case (
                ast.FormattedValue(value=inner)
                | ast.Call(func=ast.Attribute(attr="join"), args=[inner])
            ):
                yield from self._texts(inner)
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
                for each in self._named[name]:
                    yield from self._texts(each)
            case ast.IfExp(body=first, orelse=second):
                yield from self._texts(first)
                yield from self._texts(second)
            case ast.BoolOp(values=values) | ast.List(elts=values):
                for each in values:
                    yield from self._texts(each)


def reasons() -> set[str]:
    texts = set[str]()
    for path in DETECTORS:
        texts |= Reasons(ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))).found
    return texts


def test_a_run_is_blind_to_every_reason_for_a_doubt() -> None:
    found = reasons()
    assert len(found) > 20, "they are made in another way by now"
    patterns = [blind.reasons for blind in BLINDNESSES.values() if blind.reasons]
    unseen = {text for text in found if not any(re.search(each, text) for each in patterns)}
    assert unseen == UNSHOWN.keys(), "a detector needs an entry in tests/ddl_chaos/blind.py"


def test_kinds_that_tell_on_blind_daemons_are_there() -> None:
    kinds = {kind for blind in BLINDNESSES.values() for kind in blind.kinds}
    assert kinds <= {*KINDS, *HARMLESS}
    assert SINCE.keys() <= KINDS.keys()
    assert not KINDS.keys() & HARMLESS.keys()


def test_functions_that_a_daemon_is_blind_without_are_there() -> None:
    named = {blind.function[:2] for blind in BLINDNESSES.values() if blind.function}
    assert [name for owner, name in named if not hasattr(owner, name)] == []
