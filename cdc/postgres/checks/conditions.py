"""A condition from a signal or a user → SQL with the same meaning and nothing else.

It comes from anyone who may send signals, and runs with the daemon's rights. So PostgreSQL never
gets that text. sqlglot parses it, from the tokens that condition_tokens.py permits. This module
writes each node again, with all brackets, types and functions qualified. It refuses a node that it
doesn't know, so a difference between the two parsers can't be exploited.

Values are columns, literals and expressions of them. A condition is a comparison of values, or
conditions joined by AND, OR and NOT. sqlglot binds operators as PostgreSQL does. A tree that says
otherwise is also refused. https://www.postgresql.org/docs/current/sql-syntax-lexical.html (operator
precedence)
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from psycopg import sql
from sqlglot import exp

from cdc.errors import TableRefusedError
from cdc.postgres.checks.condition_tokens import NOT_A_COLUMN, POSTGRES, ConditionError, tokens
from cdc.postgres.described import TableDescription
from cdc.records.schema import Column, TableName
from cdc.settings import CaptureSettings

_USER_OIDS: Final = 16_384
"""FirstNormalObjectId: OIDs from here on aren't PostgreSQL's own."""
_CONNECTIVES: Final[dict[type[exp.Expr], tuple[str, int]]] = {
    exp.Or: ("OR", 1),
    exp.And: ("AND", 2),
}
_NOT_LEVEL: Final = 3
_OPERATORS: Final[dict[type[exp.Expr], tuple[str, int]]] = {
    exp.DPipe: ("||", 1),
    exp.Add: ("+", 2),
    exp.Sub: ("-", 2),
    exp.Mul: ("*", 3),
    exp.Div: ("/", 3),
    exp.Mod: ("%", 3),
}
"""Node → the operator, and its binding strength. All of them bind from the left."""
_NEGATION_LEVEL: Final = 4
_EQUALITIES: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}
_INEQUALITIES: Final[dict[type[exp.Expr], str]] = {
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_FUNCTIONS: Final[dict[type[exp.Expr], str]] = {
    exp.Abs: "pg_catalog.abs",
    exp.Length: "pg_catalog.length",
    exp.Lower: "pg_catalog.lower",
    exp.Upper: "pg_catalog.upper",
    exp.Coalesce: "COALESCE",
    exp.Greatest: "GREATEST",
    exp.Least: "LEAST",
    exp.Nullif: "NULLIF",
}
_CLOCKS: Final[dict[type[exp.Expr], str]] = {
    exp.CurrentTimestamp: "CURRENT_TIMESTAMP",
    exp.CurrentDate: "CURRENT_DATE",
}
_TYPES: Final = {
    exp.DType.BIGINT: "int8",
    exp.DType.BOOLEAN: "bool",
    exp.DType.DATE: "date",
    exp.DType.DECIMAL: "numeric",
    exp.DType.DOUBLE: "float8",
    exp.DType.INT: "int4",
    exp.DType.INTERVAL: "interval",
    exp.DType.SMALLINT: "int2",
    exp.DType.TEXT: "text",
    exp.DType.TIME: "time",
    exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPTZ: "timestamptz",
    exp.DType.UUID: "uuid",
    exp.DType.VARCHAR: "varchar",
}
"""Types that a value may be cast to. Excludes real, which sqlglot confuses with float."""
_WITH_PARAMETERS: Final = {exp.DType.DECIMAL, exp.DType.VARCHAR}
_SHOWN: Final = 64
"""Characters of a label that a refusal repeats."""
_NUMBER: Final = re.compile(r"[0-9]+\.?[0-9]*(e[+-]?[0-9]+)?", re.IGNORECASE | re.ASCII)
_HARMLESS: Final = frozenset({"big_int", "ignore_nulls", "nested", "safe", "typed"})
"""Members of nodes that express other dialects' meaning."""
_REMEDY: Final = (
    "write a condition with columns of built-in types (or enums), literals, comparisons, AND,"
    " OR, NOT, IN, BETWEEN, LIKE, IS, CASE, + - * / % ||, casts to common types, and abs,"
    " coalesce, current_date, greatest, least, length, lower, now, nullif, upper"
)


def rendered(table: TableName, columns: Iterable[Column], condition: str) -> str:
    """Write a condition on a table's columns again.

    Raise TableRefusedError if it has any other part.
    """
    shown = {column.name: column.labels for column in columns if _is_known(column)}
    try:
        return _rendered(condition, frozenset(shown.items()))
    except ConditionError as error:
        what = str(error)
    except Exception:  # noqa: BLE001 - nobody knows all that a parser does with foreign text
        what = "a part that can't be parsed"
    raise TableRefusedError(
        f"the filter isn't a plain condition on the table's own columns: it has {what}",
        where=f"table {table}",
        remedy=_REMEDY,
    )


def rendered_for(settings: CaptureSettings, table: TableDescription, condition: str) -> str:
    """Write a captured table's condition again. Excludes columns that events lack or mask.

    The rows that meet a condition disclose its columns' values.
    """
    modes, name = settings.column_modes, str(table.name)
    shown = [
        column
        for column in table.columns
        if modes.keeps(name, column.name) and modes.rule(name, column.name) is None
    ]
    return rendered(table.name, shown, condition)


def _is_known(column: Column) -> bool:
    """Whether its type is PostgreSQL's own, or an enum.

    The owner of another type also makes its casts and operators.
    """
    is_enum = column.typtype == "e" and not (column.array or column.domain)
    return column.type_oid < _USER_OIDS or (is_enum and bool(column.labels))


@lru_cache(maxsize=64)
def _rendered(condition: str, columns: frozenset[tuple[str, tuple[str, ...]]]) -> str:
    checked = tokens(condition, dict(columns))
    parsed = POSTGRES.parser().parse_into(exp.Condition, checked, condition)
    if len(parsed) != 1 or parsed[0] is None:
        raise ConditionError("no condition, or more than one")
    return _Renderer(dict(columns)).condition(parsed[0])


class _Renderer:
    """Nodes → SQL, in brackets where their neighbours bind differently.

    ``columns`` have the labels of enums.
    """

    def __init__(self, columns: dict[str, tuple[str, ...]]) -> None:
        self._columns = columns

    def condition(self, node: exp.Expr, level: int = 0) -> str:
        """Return a condition as SQL. It has brackets, or binds at least as tightly as ``level``."""
        kind = type(node)
        if kind is exp.Paren:
            return self.condition(_member(node, "this"))
        if kind in _CONNECTIVES:
            return _chain(node, _CONNECTIVES, self.condition, level)
        if kind is exp.Not:
            _check(node, "this", level=(_NOT_LEVEL, level))
            return f"(NOT {self.condition(node.this, _NOT_LEVEL)})"
        return self._predicate(node)

    def _predicate(self, node: exp.Expr) -> str:
        kind = type(node)
        negation = "NOT " if node.args.get("negate") else ""
        if operator := {**_EQUALITIES, **_INEQUALITIES}.get(kind):
            _check(node, "this", "expression")
            compared = self._equal if kind in _EQUALITIES else self._values
            left, right = compared([node.this, node.expression])
            return f"({left} {operator} {right})"
        if kind in {exp.Like, exp.ILike, exp.Escape}:
            return self._like(node)
        if kind is exp.In:
            _check(node, "this", "expressions")
            of, *values = self._equal([node.this, *node.expressions])
            if not values:
                raise ConditionError("an empty list")
            return f"({of} IN ({', '.join(values)}))"
        if kind is exp.Between:
            _check(node, "this", "low", "high")
            low, high = (self.value(_member(node, at)) for at in ("low", "high"))
            return f"({self.value(node.this)} BETWEEN {low} AND {high})"
        if kind is exp.Is:
            _check(node, "this", "expression", "negate")
            if type(node.expression) not in {exp.Null, exp.Boolean}:
                raise _refusal(node.expression)
            return f"({self._text_or_value(node.this)} IS {negation}{self.value(node.expression)})"
        return self.value(node)

    def _like(self, node: exp.Expr) -> str:
        escape = ""
        if type(node) is exp.Escape:
            _check(node, "this", "expression")
            if not node.expression.is_string:
                raise _refusal(node)
            escape = f" ESCAPE {self.value(node.expression)}"
            node = node.this
        if type(node) not in {exp.Like, exp.ILike}:
            raise _refusal(node)
        _check(node, "this", "expression", "negate")
        word = "LIKE" if type(node) is exp.Like else "ILIKE"
        negation = "NOT " if node.args.get("negate") else ""
        pattern = self.value(node.expression)
        return f"({self._text_or_value(node.this)} {negation}{word} {pattern}{escape})"

    def value(self, node: exp.Expr, level: int = 0) -> str:
        """Return a compared value as SQL.

        It has brackets, or binds at least as tightly as ``level``.
        """
        kind = type(node)
        if kind is exp.Paren:
            return self.value(_member(node, "this"))
        if kind in _OPERATORS:
            return _chain(node, _OPERATORS, self.value, level)
        if kind is exp.Neg:
            _check(node, "this", level=(_NEGATION_LEVEL, level))
            return f"(- {self.value(node.this, _NEGATION_LEVEL)})"
        return self._atom(node)

    def _atom(self, node: exp.Expr) -> str:
        kind = type(node)
        if isinstance(node, exp.Column):
            return self._column(node)
        if kind in _FUNCTIONS:
            _check(node, "this", "expression", "expressions")
            rest = [node.args["expression"]] if node.args.get("expression") else node.expressions
            return f"{_FUNCTIONS[kind]}({', '.join(self._values([node.this, *rest]))})"
        if kind is exp.Cast:
            _check(node, "this", "to")
            to = _member(node, "to")
            is_text = to.this in {exp.DType.TEXT, exp.DType.VARCHAR}
            cast = self._text_or_value(node.this) if is_text else self.value(node.this)
            return f"CAST({cast} AS {_type(to)})"
        if kind is exp.Case:
            return self._case(node)
        return _constant(node)

    def _case(self, node: exp.Expr) -> str:
        _check(node, "this", "ifs", "default")
        of = node.args.get("this")
        parts = ["CASE"] if of is None else [f"CASE {self.value(of)}"]
        for branch in node.args["ifs"]:
            _check(branch, "this", "true")
            when = self.condition(branch.this) if of is None else self.value(branch.this)
            parts.append(f"WHEN {when} THEN {self.value(_member(branch, 'true'))}")
        if (default := node.args.get("default")) is not None:
            parts.append(f"ELSE {self.value(default)}")
        return f"({' '.join(parts)} END)"

    def _column(self, node: exp.Column) -> str:
        _check(node, "this")
        if type(node.this) is not exp.Identifier or not node.this.args.get("quoted"):
            raise _refusal(node.this)
        name = node.this.name
        if name not in self._columns:
            raise ConditionError(f"{name!r}, {NOT_A_COLUMN}")
        if self._columns[name]:
            what = "is an enum: compare it with its labels by = <> IN or LIKE, or cast it to text"
            raise ConditionError(f"{name!r} where it isn't allowed, which {what}")
        return sql.Identifier(name).as_string(None)

    def _values(self, nodes: Iterable[exp.Expr]) -> list[str]:
        return [self.value(node) for node in nodes]

    def _labels(self, node: exp.Expr) -> tuple[str, ...]:
        """Return the labels of an enum's column, otherwise none."""
        return self._columns.get(node.name, ()) if type(node) is exp.Column else ()

    def _text_or_value(self, node: exp.Expr) -> str:
        """Return a value. An enum's label is text, not a cast, which its owner may define."""
        bare = node.unnest()
        if not self._labels(bare):
            return self.value(node)
        _check(bare, "this")
        column = sql.Identifier(bare.name).as_string(None)
        return f"pg_catalog.textin(pg_catalog.enum_out({column}))"

    def _equal(self, nodes: Iterable[exp.Expr]) -> list[str]:
        """Return values compared for equality. As in PostgreSQL, enums accept their own labels."""
        bare = [node.unnest() for node in nodes]
        enums = [labels for node in bare if (labels := self._labels(node))]
        for node in bare if enums else []:
            is_label = node.is_string and all(str(node.this) in labels for labels in enums)
            if not (is_label or type(node) is exp.Null or self._labels(node) == enums[0]):
                what = f"the label {node.name[:_SHOWN]!r}" if node.is_string else "another value"
                raise ConditionError(f"an enum compared with {what}, which isn't one of its labels")
        return [self._text_or_value(node) for node in bare]


def _chain(
    node: exp.Expr,
    operators: Mapping[type[exp.Expr], tuple[str, int]],
    render: Callable[[exp.Expr, int], str],
    level: int,
) -> str:
    """Join operands from the left by operators of equal strength, in any number."""
    _, own = operators[type(node)]
    parts: list[str] = []
    while (operator := operators.get(type(node))) is not None and operator[1] == own:
        _check(node, "this", "expression", level=(own, level))
        parts += [render(_member(node, "expression"), own + 1), operator[0]]
        node, level = _member(node, "this"), own
    return f"({' '.join([render(node, own), *reversed(parts)])})"


def _check(node: exp.Expr, *members: str, level: tuple[int, int] = (0, 0)) -> None:
    """Refuse a node with other members, or one that binds less tightly than it may."""
    more = [at for at, value in node.args.items() if value and at not in _HARMLESS.union(members)]
    if more:
        raise _refusal(node)
    binds, needed = level
    if binds < needed:
        raise ConditionError("operators that need brackets to show their order")


def _member(node: exp.Expr, at: str) -> exp.Expr:
    member = node.args.get(at)
    if not isinstance(member, exp.Expr):
        raise _refusal(node)
    return member


def _refusal(node: object) -> ConditionError:
    name = type(node).__name__
    if isinstance(node, exp.Anonymous | exp.Dot):
        name = f"the function {node.name or node.expression.name}"
    return ConditionError(f"{name!r}, which isn't allowed")


def _constant(node: exp.Expr) -> str:
    kind = type(node)
    if isinstance(node, exp.Literal) and node.is_string:
        return sql.Literal(str(node.this)).as_string(None).strip()
    if isinstance(node, exp.Literal) and _NUMBER.fullmatch(str(node.this)):
        return str(node.this)
    if kind is exp.Null:
        return "NULL"
    if kind is exp.Boolean:
        return "TRUE" if node.this else "FALSE"
    if kind not in _CLOCKS:
        raise _refusal(node)
    _check(node)
    return _CLOCKS[kind]


def _type(node: exp.Expr) -> str:
    if not isinstance(node, exp.DataType) or node.this not in _TYPES:
        raise ConditionError("a cast to a type that isn't allowed")
    _check(node, "this", *(["expressions"] if node.this in _WITH_PARAMETERS else []))
    numbers = [parameter.this for parameter in node.expressions]
    if not all(type(number) is exp.Literal and str(number.this).isdecimal() for number in numbers):
        raise _refusal(node)
    sizes = ", ".join(str(number.this) for number in numbers)
    return f"pg_catalog.{_TYPES[node.this]}" + (f"({sizes})" if sizes else "")
