"""SQLSTATEs → errors with a remedy."""

import pytest

from cdc.errors import ConfigError, ExitCode, SourceUnreachableError, TableRefusedError
from cdc.postgres.failures import blaming, statement_error


@pytest.mark.parametrize("sqlstate", ["22021", "22P05"])
def test_text_that_is_not_utf8_is_no_bug_of_ours(sqlstate: str) -> None:
    error = statement_error(sqlstate, 'invalid byte sequence for encoding "UTF8": 0xff', "h:1/db")
    assert error.exit_code == ExitCode.TABLE_REFUSED
    assert "table.exclude.list" in str(error)


def test_sql_of_the_configuration_is_blamed_for_its_errors_and_for_no_outage() -> None:
    missing = statement_error("42P01", 'relation "none" does not exist', "h:1/db")
    with (
        pytest.raises(
            ConfigError, match=r"refuses snapshot.select.statement.overrides.t: relation.*h:1/db"
        ) as no,
        blaming("snapshot.select.statement.overrides.t"),
    ):
        raise missing
    assert "start again" not in str(no.value)
    with pytest.raises(TableRefusedError), blaming(None):
        raise missing
    with pytest.raises(SourceUnreachableError), blaming("snapshot.select.statement.overrides.t"):
        raise statement_error(None, "gone", "h:1/db")
