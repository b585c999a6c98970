"""Pages, messages, docstrings and comments → short sentences, plain words, lines that fit."""

import ast
import inspect
import io
import re
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
CHECKED: Final = {
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks/README.md",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
}
COLUMNS_MAX: Final = 120
WORDS_MAX: Final = 35
MEDIAN_MAX: Final = 16
NINETIETH_MAX: Final = 28
AVOIDED: Final = {
    r"\banew\b": "again; from the beginning",
    r"\bof such an? (one|table)\b": "name the thing",
    r"\bothers'": "other tools', other users'",
    r"\bis told\b|\bare told\b|\btold by\b": "is logged; names; reports",
    r"\bhasn't any\b|\bhaven't any\b|\bhas no longer\b": "no longer has",
    r"\bany more\b": "no longer",
    r"\bas ever\b|\bas before\b": "say how",
    r"\bwithout a word\b": "silently",
    r"\btakes? \w+( and \w+)? away\b|\btaken away\b": "removes",
    r"\bgives? (it|them) back\b": "returns",
    r"\bbeside (it|them|that|this)\b": "next to; in addition to",
    r"\bthereby\b|\bthereof\b|\btherein\b|\bhereby\b|\bwherein\b": "by, of, in which",
    r"\bnevertheless\b|\bnonetheless\b": "even so",
    r"\bmeanwhile\b.*\bmeanwhile\b": "once is enough",
    r"\bmay well\b": "can",
    r"\bso that not\b": "so that … doesn't",
    r"\bnot until\b": "only after",
    r"\bbe it\b": "whether",
    r"\bby chance\b": "at random; may or may not",
    r"\bfor good\b": "permanently",
    r"\bfor now\b": "until …",
    r"\bby and by\b|\bbit by bit\b": "gradually",
    r"\ba good deal\b|\ba great many\b": "many",
    r"\bgoes on\b|\bgo on\b|\bgoing on\b": "continues",
    r"\bcomes? by\b": "runs",
    r"\bleads? to nothing\b": "has no effect",
    r"\bin vain\b": "without success",
    r"\b(is|are) to be\b": "must be; give the command",
    r"\bhow (it|they) (is|are) meant\b": "its meaning",
    r"\bthe one\b.{0,30}\bthe other\b": "name both",
    r"\bwhich is why\b": "so",
    r"\bwhose\b.{0,60}\bwhose\b": "two sentences",
    r"\bof which\b|\bin which\b.{0,60}\bin which\b": "two sentences",
    r"\blooks? at\b": "reads; checks",
    r"^(What(?! happens)|Where|Who|Which) [^?]*\b(is|are|was|were|has|have)\b[^?]*[.:]$": (
        "begin with the subject"
    ),
    r"^(Not|No more|Neither) (?!covered\b|run\b|built\b)[a-z]": "a verb and a subject",
    r"^Without \w+,? it\b": "If there is no …",
    r"^So (is|are|do|does)\b": "subject first",
    r"\bmakes? it that\b": "makes",
    r"\bthere is (no|a) \w+ that\b": "no … does; a … does",
    r"\bin the case that\b|\bin case that\b": "if",
    r"\bwith the help of\b": "with",
    r"\bdue to the fact\b": "because",
    r"\bin order to\b": "to",
    r"\bit is possible to\b": "you can",
    r"\bplease\b": "leave it out",
    r"\bsimply\b|\bjust\b|\bobviously\b|\bof course\b": "leave it out",
    r"\butilize\b|\bleverage\b|\bfacilitate\b": "use; help",
}
"""Pattern → what to write instead."""
PACKAGES: Final = ("cdc", "snapshots", "sinks", "compaction", "deploy")
AVOIDED_IN_MESSAGES: Final = {
    **{pattern: instead for pattern, instead in AVOIDED.items() if not pattern.startswith("^(Not")},
    r"\b(some|no)body\b": "another program, session, user; no daemon",
    r"\bmend(s|ed|ing)?\b": "solve; correct; repair",
    r"\b(is|are)n't there\b": "is missing; doesn't exist",
    r"\bforgot(ten)?\b|\bforgets\b": "no longer has",
    r"\bis another one\b|\bby now\b": "has changed; now",
    r"\bcomes? too late\b": "is too late",
    r"\bsomething else\b|\bthe same thing\b": "name it",
    r"\bis being read already\b|\bgiven up\b": "abandoned",
    r"\blooks? (again|anew|for itself)\b": "checks again",
    r"\btells? (of|what|which|how|whether)\b": "shows; reports",
}
"""The same for texts in code; a label such as "not compared: …" needs no verb there."""
AVOIDED_IN_REMARKS: Final = {
    **AVOIDED_IN_MESSAGES,
    r"\bevery ?body\b|\banybody\b|\bwhoever\b|\bwhom\b": "name the program or the user",
    r"\btells? (it|them|us|that)\b": "reports; shows",
    r"\bstands? (in|at|for|on|behind|beside|before|to)\b|\bstanding to\b": "is",
    r"\bbeside\b": "next to; in addition to",
    r"\blets? go (of|by)\b": "releases; removes",
    r"\bno more\b": "no longer; nothing further",
    r"\bfor ever\b": "permanently; without limit",
    r"\bso (long|many|much|often|few|soon)\b(?! as)": "this long; up to this many",
    r"\ball that (is|are|was|were|there)\b|^All that\b": "everything; all",
    r"\bin silence\b": "silently",
    r"\bg(o|oes|one) by\b": "uses; has",
    r"\bthe same of (it|what|them|that)\b": "the same for …",
    r"\bwhat (there|one|becomes|comes|stands|goes)\b": "name it",
    r"\bwhere (there|none|that|it|they) (is|are|isn't|aren't|has|have|can't|doesn't|don't)\b": "if",
    r"\bwasn't there\b|\bis there\b": "is missing; exists",
    r"\btak(e|es|ing) (in|notice)\b": "records; processes",
    r"\bcomes? round\b": "returns",
    r"\bof no (use|account|matter)\b": "useless; doesn't matter",
    r"\bbe had\b": "available",
    r"\bthat there (is|are|was|were|isn't|aren't)\b": "existing",
    r"\bis at fault\b|\bat it\b": "active",
    r"\bleads? nowhere\b": "doesn't help",
    r"\bof late\b|\blately\b": "recently",
    r"\btaken for\b": "presumed; mistaken for",
    r"\b(gives?|given|gave) (back|out)\b": "returns",
    r"\bput together\b": "assembled; combined",
    r"\bmakes? up for\b": "replaces",
}
"""The same for docstrings and comments."""
_DIRECTIVE: Final = re.compile(r"# (noqa|fmt:|type: ignore|pragma)|#!")
_PARAGRAPH: Final = re.compile(r"\n\s*\n")
_SHOWN: Final = re.compile(r"^ +.*$|^ *>>>.*$", re.MULTILINE)
_ANY_IN_MESSAGES: Final = re.compile("|".join(AVOIDED_IN_MESSAGES), re.IGNORECASE)
_ANY_IN_REMARKS: Final = re.compile("|".join(AVOIDED_IN_REMARKS), re.IGNORECASE)
_STATEMENT: Final = re.compile(r"\s*(--|[A-Z]{3,} )")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"\n\s*\n|\n(?=[-*|#] ?|\d+\. )")
_ITEM: Final = re.compile(r"^([-*]|\d+\.) ")
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.!?:;])\s+")


def sentences(text: str) -> Iterator[str]:
    """Each sentence, also of tables and lists; code is one word."""
    for block in _BLOCK.split(_FENCE.sub("", text)):
        if block.startswith("#"):
            continue
        for cell in block.split("|") if block.startswith("|") else [_ITEM.sub("", block)]:
            plain = " ".join(_LINK.sub("]", _CODE.sub("X", cell)).replace("*", "").split())
            yield from (sentence for sentence in _END.split(plain) if len(words(sentence)) > 3)


def words(sentence: str) -> list[str]:
    return re.findall(r"[\w'-]+", sentence)


def objections(text: str) -> list[str]:
    """What a reader would stumble over."""
    wrong = []
    for number, line in enumerate(_FENCE.sub(lambda m: "\n" * m[0].count("\n"), text).split("\n")):
        if len(line) > COLUMNS_MAX and not line.startswith("|"):
            wrong.append(f"line {number + 1} has {len(line)} columns")
    lengths = []
    for sentence in sentences(text):
        lengths.append(len(words(sentence)))
        if lengths[-1] > WORDS_MAX:
            wrong.append(f"{lengths[-1]} words: {sentence}")
        for pattern, instead in AVOIDED.items():
            if found := re.search(pattern, sentence, re.IGNORECASE):
                wrong.append(f"{found[0]} (rather: {instead}): {sentence}")
    if lengths and statistics.median(lengths) > MEDIAN_MAX:
        wrong.append(f"half of its sentences have more than {MEDIAN_MAX} words")
    if lengths and sorted(lengths)[int(0.9 * len(lengths))] > NINETIETH_MAX:
        wrong.append(f"a tenth of its sentences has more than {NINETIETH_MAX} words")
    return wrong


def texts(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that isn't a docstring; what an f-string fills in is X."""
    pending: list[ast.AST] = [ast.parse(code)]
    while pending:
        node = pending.pop()
        match node:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.JoinedStr(values=values):
                parts = [each.value if isinstance(each, ast.Constant) else "X" for each in values]
                yield node.lineno, "".join(map(str, parts))
                pending += (each for each in values if isinstance(each, ast.FormattedValue))
            case ast.Constant(value=str(text)):
                yield node.lineno, text
            case _:
                pending += ast.iter_child_nodes(node)


def objections_to_messages(code: str) -> Iterator[str]:
    """Texts in code, except SQL, with words that pages avoid, too."""
    for line, text in texts(code):
        if text.count(" ") < 2 or _STATEMENT.match(text):
            continue
        if found := _ANY_IN_MESSAGES.search(text):
            alike = (i for p, i in AVOIDED_IN_MESSAGES.items() if re.search(p, text, re.IGNORECASE))
            instead = next(alike)
            yield f"line {line}: {found[0]} (rather: {instead}): {text}"


def remarks(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and comment; the lines of a comment are one text."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, inspect.cleandoc(text)
    first, block = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        line, column = token.start
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        follows = line == first + len(block) and not token.line[:column].strip()
        if block and not follows:
            yield first, " ".join(block)
        first, block = (first, block) if block and follows else (line, [])
        block.append(token.string.lstrip("# "))
    if block:
        yield first, " ".join(block)


def objections_to_remarks(code: str) -> Iterator[str]:
    """Docstrings and comments with avoided words, or long sentences; indented lines are code."""
    for line, text in remarks(code):
        plain = _CODE.sub("X", _SHOWN.sub("", text.replace("``", "`")))
        for paragraph in _PARAGRAPH.split(plain):
            for sentence in _END.split(" ".join(paragraph.split())):
                if len(words(sentence)) > WORDS_MAX:
                    yield f"line {line}: {len(words(sentence))} words: {sentence}"
                if found := _ANY_IN_REMARKS.search(sentence):
                    known = AVOIDED_IN_REMARKS.items()
                    instead = next(i for p, i in known if re.search(p, sentence, re.IGNORECASE))
                    yield f"line {line}: {found[0]} (rather: {instead}): {sentence}"


@pytest.mark.parametrize("page", sorted(CHECKED))
def test_a_page_reads_well(page: str) -> None:
    assert objections((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "Rows are read anew after that.",
        "What was read is in the log by then.",
        "It says so " + "and so " * 20 + "on.",
        "x" * 121,
    ],
)
def test_what_reads_badly_is_refused(text: str) -> None:
    assert objections(text) != []


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_read_well(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    wrong = {
        str(file.relative_to(ROOT)): said
        for file in files
        if (said := [*objections_to_messages(file.read_text(encoding="utf-8"))])
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "code",
    [
        'raise ValueError("the table is read anew")',
        'print(f"{count} rows go on")',
        'log.warning("a slot is lost", remedy="nobody may advance it")',
    ],
)
def test_a_message_that_reads_badly_is_refused(code: str) -> None:
    assert [*objections_to_messages(code)] != []


def test_docstrings_and_sql_are_no_messages() -> None:
    code = '"""What is read anew."""\nQUERY = "SELECT a, just FROM t"\n'
    assert [*objections_to_messages(code)] == []


@pytest.mark.parametrize("package", [*PACKAGES, "millrace.py"])
def test_docstrings_and_comments_read_well(package: str) -> None:
    files = [ROOT / package, *sorted((ROOT / package).rglob("*.py"))]
    paths = {str(file.relative_to(ROOT)): file for file in files if file.suffix == ".py"}
    wrong = {
        path: said
        for path, file in paths.items()
        if (said := [*objections_to_remarks(file.read_text(encoding="utf-8"))])
    }
    assert wrong == {}


def test_tests_say_well_what_they_are_for() -> None:
    wrong = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        purpose = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if said := [*objections_to_remarks(repr(purpose))]:
            wrong[str(path.relative_to(ROOT))] = said
    assert wrong == {}


@pytest.mark.parametrize(
    "code",
    [
        '"""Rows → events.\n\nWhat one of them stands for goes by its name.\n"""\n',
        'def f():\n    """Return so many rows as nobody has read."""\n',
        'size = 1\n"""Of a block, where it is known."""\n',
        "# The rows are\n# no more.\nrows = 0\n",
        "rows = 0  # none are to be had\n",
        f'"""Return {"rows and " * 20}events."""',
    ],
)
def test_a_remark_that_reads_badly_is_refused(code: str) -> None:
    assert [*objections_to_remarks(code)] != []


def test_code_and_directives_in_remarks_are_left_alone() -> None:
    code = '"""``beside`` → a row.\n\n  meant beside\n\nA row.\n"""\nx = 1  # noqa: for ever\n'
    assert [*objections_to_remarks(code)] == []
