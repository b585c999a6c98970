"""``millrace ddl-trigger --print`` → SQL for users who may install event triggers.

Without it the catalog check finds DDL within seconds. With it, DDL is known as soon as the stream
reaches it. https://www.postgresql.org/docs/current/event-triggers.html
"""

from typing import Annotated, Final

import typer

from cdc.errors import ConfigError
from cdc.stream.signals import DDL

FUNCTION: Final = "millrace_ddl"
"""The function that the SQL creates. All triggers are dropped with it."""
_SQL: Final = f"""\
-- For a superuser, in the captured database. Each DDL statement writes one logical message into the
-- WAL, in its own transaction. To remove it again: DROP FUNCTION {FUNCTION}() CASCADE;
CREATE FUNCTION {FUNCTION}() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_catalog.pg_logical_emit_message(true, '{DDL}', tg_event || ' ' || tg_tag);
END $$;
CREATE EVENT TRIGGER millrace_ddl ON ddl_command_end EXECUTE FUNCTION {FUNCTION}();
CREATE EVENT TRIGGER millrace_rewrite ON table_rewrite EXECUTE FUNCTION {FUNCTION}();
CREATE EVENT TRIGGER millrace_drop ON sql_drop EXECUTE FUNCTION {FUNCTION}();"""


def ddl_trigger(
    *,
    to_stdout: Annotated[
        bool, typer.Option("--print", help="Print the SQL, and install nothing.")
    ] = False,
) -> None:
    """Print SQL for event triggers that report DDL at once. Millrace never installs them itself."""
    if not to_stdout:
        raise ConfigError(
            "ddl-trigger needs --print: it installs nothing itself",
            where="--print",
            remedy="let a superuser run the SQL: millrace ddl-trigger --print | psql -d"
            " the_database",
        )
    print(_SQL)
