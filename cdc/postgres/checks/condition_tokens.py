"""A condition's text → the tokens for a parser, all of them of permitted kinds.

A parser's attempts at foreign text can double with each level. If it differs from PostgreSQL's
parser, it finds another meaning. So the parser's input alternates values and operators, has few
levels, calls only listed functions, and has any other word as a quoted column.
"""

import logging
from collections.abc import Collection
from typing import Final

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

POSTGRES: Final = Dialect.get_or_raise("postgres")
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # it would repeat foreign text verbatim
CHARACTERS_MAX: Final = 1 << 13
"""Of a condition: a list of a thousand keys, which takes a fifth of a second to parse."""
NESTING_MAX: Final = 12
"""Of brackets and CASEs: the parser recurses some twenty times for each."""
_IN_A_ROW_MAX: Final = 2
"""Of NOTs, signs, and casts, which are levels, too."""
_WORDS: Final[dict[str, tuple[bool | None, bool]]] = {
    **dict.fromkeys(("=", "<>", "!=", "<", "<=", ">", ">=", "+", "*", "/", "%"), (True, False)),
    **dict.fromkeys(("||", ",", "and", "or", "in", "between", "like", "ilike"), (True, False)),
    **dict.fromkeys(("escape", "is", "then", "else"), (True, False)),
    **dict.fromkeys(("-", "not", "when"), (None, False)),
    **dict.fromkeys(("(", "case", "distinct", "from"), (False, False)),
    **dict.fromkeys((")", "end"), (True, True)),
    **dict.fromkeys(("null", "true", "false"), (False, True)),
    **dict.fromkeys(("current_date", "current_timestamp"), (False, True)),
}
"""Word → whether it follows a value (None: either way), and whether it ends one."""
_BEHIND: Final = {"distinct": {"is", "not"}, "from": {"distinct"}, "when": {"case"}}
"""The words that these follow, if that is no value."""
_NEGATED: Final = {"in", "between", "like", "ilike"}
_FUNCTIONS: Final = frozenset({
    "abs", "coalesce", "greatest", "least", "length", "lower", "now", "nullif", "upper",
})  # fmt: skip
_VALUE_NAMES: Final = frozenset({
    "current_catalog", "current_role", "current_schema", "current_time", "current_user",
    "localtime", "localtimestamp", "session_user", "system_user", "user",
})  # fmt: skip
"""Without quotes PostgreSQL doesn't read them as columns."""
_TYPES: Final = frozenset({
    "bigint", "bool", "boolean", "character varying", "date", "decimal", "double precision",
    "float8", "int", "int2", "int4", "int8", "integer", "interval", "numeric", "smallint", "text",
    "time", "time without time zone", "timestamp", "timestamp with time zone",
    "timestamp without time zone", "timestamptz", "uuid", "varchar",
})  # fmt: skip
_TYPE_WORDS_MAX: Final = 4
_END: Final = Token(TokenType.SEMICOLON, ";")
_CAST: Final = POSTGRES.tokenize("CAST(")
_AS: Final = POSTGRES.tokenize("AS")
_CLOSE: Final = POSTGRES.tokenize(")")
_QUOTED: Final = {
    *(kind for kind in TokenType if kind.name.endswith("_STRING")),
    TokenType.STRING,
    TokenType.IDENTIFIER,
}
"""Tokens of E'…', $$…$$ and the like also have their content as text: no word."""
_SHOWN: Final = 64
"""Characters of a word that a refusal repeats."""
NOT_A_COLUMN: Final = "which isn't a column of a built-in type that events contain unchanged"


class ConditionError(Exception):
    """A part that a condition may not have."""


def tokens(condition: str, columns: Collection[str]) -> list[Token]:
    """Check a condition on columns of these names. Raise ConditionError."""
    if len(condition) > CHARACTERS_MAX:
        raise ConditionError(f"more than {CHARACTERS_MAX:,} characters")
    if "\0" in condition or not _is_unicode(condition):
        raise ConditionError("characters that aren't text")
    read = POSTGRES.tokenize(condition)
    ends = [(token.start, token.end + 1) for token in read]
    starts = [0, *(end for _, end in ends)]
    for start, end in zip(starts, [*(start for start, _ in ends), len(condition)], strict=True):
        if "{#" in condition[start:end]:  # only the parser reads it as a comment
            raise ConditionError("'{#', which isn't allowed")
    return _TokenReader(read, columns).all()


def folded(name: str) -> str:
    """Fold a name as PostgreSQL does without quotes: ASCII letters become lower case."""
    return "".join(each.lower() if each.isascii() else each for each in name)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _TokenReader:
    def __init__(self, read: list[Token], columns: Collection[str]) -> None:
        self._read = read
        self._columns = columns
        self._at = 0
        self._open: list[str] = []
        self._in_a_row = 0
        self._before = ""
        self._is_behind_value = False
        self._taken: list[Token] = []

    def all(self) -> list[Token]:
        """Return the tokens of the whole condition."""
        while self._at < len(self._read):
            word = self._word()
            known = _WORDS.get(word)
            if word in {"::", "as"} and self._is_behind_value:
                self._cast(word)
            elif self._is_behind_value or (known and known[0] is not True):
                self._check(word, known)
                self._nest(word)
                is_negated = self._is_behind_value and word == "not"  # NOT IN, for example
                self._take(1, word, is_value=is_negated or (known is not None and known[1]))
            else:
                self._value(word)
            if len(self._open) > NESTING_MAX or self._in_a_row > _IN_A_ROW_MAX:
                raise ConditionError(
                    f"more than {NESTING_MAX} nested brackets or CASEs, or more than"
                    f" {_IN_A_ROW_MAX} of NOT, - or :: in a row"
                )
        if self._open or not self._is_behind_value:
            raise ConditionError("no value, bracket or END where one must follow")
        return self._taken

    def _word(self, ahead: int = 0) -> str:
        """Return a word or symbol; empty for a literal or a quoted name."""
        at = self._at + ahead
        token = self._read[at] if at < len(self._read) else _END
        return "" if token.token_type in _QUOTED else folded(token.text)

    def _is(self, kind: TokenType, ahead: int = 0) -> bool:
        at = self._at + ahead
        return at < len(self._read) and self._read[at].token_type is kind

    def _is_joined(self, kind: TokenType) -> bool:
        """Whether the next token is of that kind, with no space before it."""
        return self._is(kind, 1) and self._read[self._at + 1].start == self._read[self._at].end + 1

    def _take(self, count: int, word: str, *, is_value: bool) -> None:
        self._taken += self._read[self._at : self._at + count]
        self._at += count
        self._in_a_row = self._in_a_row + 1 if word in {"not", "-", "::"} else 0
        self._before, self._is_behind_value = word, is_value

    def _refusal(self) -> ConditionError:
        token = self._read[self._at]
        return ConditionError(f"{token.text[:_SHOWN]!r}, which isn't allowed")

    def _check(self, word: str, known: tuple[bool | None, bool] | None) -> None:
        is_there = known is not None and known[0] in {None, self._is_behind_value}
        if not self._is_behind_value and word in _BEHIND:
            is_there = self._before in _BEHIND[word]
        if self._is_behind_value and word == "not":
            is_there = self._word(1) in _NEGATED
        if not is_there:
            raise self._refusal()

    def _nest(self, word: str) -> None:
        if word in {"(", "case"}:
            self._open.append(word)
        elif word in {")", "end"} and not (
            self._open and (self._open.pop() == "case") is (word == "end")
        ):
            raise self._refusal()

    def _value(self, word: str) -> None:
        """Take a literal, a column, or a function's beginning."""
        is_called = self._word(1) == "("
        size = self._type_size(0)
        if is_called and (word == "cast" or word in _FUNCTIONS):
            self._open.append(word)
            if word == "now" and self._word(2) == ")":
                self._open.pop()
                self._take(3, word, is_value=True)
            else:
                self._take(2, word, is_value=False)
        elif size and self._is(TokenType.STRING, size):  # date '2026-01-01'
            self._literal_of_type(size)
        elif is_called and self._read[self._at].text.isidentifier():
            raise ConditionError(f"'the function {word[:_SHOWN]}', which isn't allowed")
        elif word == "unknown" and self._before in {"is", "not"}:
            self._take(1, word, is_value=True)
        elif self._is(TokenType.DOT) and self._is_joined(TokenType.NUMBER):  # .5
            self._take(2, "", is_value=True)
        elif any(map(self._is, (TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER))):
            self._take(1, "", is_value=True)
        elif word in _WORDS or not word.isidentifier():
            raise self._refusal()
        elif word in _VALUE_NAMES or word not in self._columns:
            raise ConditionError(f"{word[:_SHOWN]!r}, {NOT_A_COLUMN}")
        else:
            self._take(1, "", is_value=True)
            self._taken[-1] = _column(word)

    def _type_size(self, ahead: int) -> int:
        """Return how many tokens from there on form a type. 0: none."""
        words = [self._word(ahead + at) for at in range(_TYPE_WORDS_MAX)]
        sizes = range(_TYPE_WORDS_MAX, 0, -1)
        size = next((size for size in sizes if " ".join(words[:size]) in _TYPES), 0)
        if not size or self._word(ahead + size) != "(":
            return size
        size += 1
        while self._is(TokenType.NUMBER, ahead + size) and self._word(ahead + size + 1) == ",":
            size += 2
        is_whole = self._is(TokenType.NUMBER, ahead + size) and self._word(ahead + size + 1) == ")"
        return size + 2 if is_whole else 0

    def _cast(self, word: str) -> None:
        if word == "as" and not (self._open and self._open[-1] == "cast"):
            raise self._refusal()
        size = self._type_size(1)
        if not size:
            raise ConditionError("a cast to a type that isn't allowed")
        self._take(1 + size, word, is_value=True)

    def _literal_of_type(self, size: int) -> None:
        """Replace a typed literal with a cast, as the parser reads some of them differently."""
        words = self._read[self._at : self._at + size]
        self._at += size
        self._take(1, "", is_value=True)
        literal = self._taken.pop()
        self._taken += [*_CAST, literal, *_AS, *words, *_CLOSE]


def _column(name: str) -> Token:
    """Return the column in quotes, so that the parser doesn't read it as its own word."""
    return Token(TokenType.IDENTIFIER, name)
