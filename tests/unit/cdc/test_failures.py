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
        pytest.raises(ConfigError, match=r"refuses heartbeat.action.query: relation.*h:1/db") as no,
        blaming("heartbeat.action.query"),
    ):
        raise missing
    assert "start again" not in str(no.value)
    with pytest.raises(TableRefusedError), blaming(None):
        raise missing
    with pytest.raises(SourceUnreachableError), blaming("heartbeat.action.query"):
        raise statement_error(None, "gone", "h:1/db")
