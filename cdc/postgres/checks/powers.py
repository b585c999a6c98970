"""The daemon's role → what it may do that Millrace has no use for, and others could gain by it.

Who owns a captured table has a say in what runs when its rows are read, and who reads the daemon's
configuration has its password: neither should be worth more than the captured rows.
"""

from collections.abc import Iterator
from typing import Final

import psycopg

from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable
from cdc.postgres.failures import quote, sql_names
from cdc.settings import CaptureSettings

# A superuser is a member of all roles, and has all that they have.
_ATTRIBUTES: Final = """
SELECT coalesce(bool_or(rolsuper), false), coalesce(bool_or(rolcreaterole), false),
       coalesce(array_agg(rolname::text ORDER BY rolname) FILTER (WHERE rolname = ANY (%s)), '{}')
FROM pg_roles WHERE pg_has_role(current_user, oid, 'MEMBER')
"""
_POWERFUL: Final = [
    "pg_execute_server_program",
    "pg_read_server_files",
    "pg_write_all_data",
    "pg_write_server_files",
]
_OWNED: Final = """
SELECT oid FROM pg_class WHERE oid = ANY (%s) AND pg_has_role(current_user, relowner, 'MEMBER')
"""
_PAGE: Final = "docs/explanation/security.md has all lines for a role of Millrace's own"


def find_powers(
    connection: psycopg.Connection, settings: CaptureSettings, captured: list[CapturedTable]
) -> Iterator[str]:
    """What the role may do without need, each with the line that takes it away."""
    role = quote(connection.info.user)
    ((is_super, makes_roles, memberships),) = query(connection, _ATTRIBUTES, [_POWERFUL])
    if is_super:
        yield (
            f"the role {role} is a superuser, or may become one, which capturing doesn't need:"
            f" {_PAGE}; or let a superuser run ALTER ROLE {role} NOSUPERUSER;"
        )
        return
    if makes_roles:
        yield (
            f"the role {role} may make and change roles, which capturing doesn't need: let a"
            f" superuser run ALTER ROLE {role} NOCREATEROLE;"
        )
    if memberships:
        yield (
            f"the role {role} has rights over the whole server that capturing doesn't need: let a"
            f" superuser run REVOKE {', '.join(memberships)} FROM {role};"
        )
    if settings.publication_autocreate_mode == "filtered":
        return  # only owners may publish
    owned = {oid for (oid,) in query(connection, _OWNED, [[table.oid for table in captured]])}
    if names := sorted(table.name for table in captured if table.oid in owned):
        yield (
            f"the role {role} owns {len(names)} captured tables, which it need only read: let"
            f" somebody else own {sql_names(names)}, and GRANT SELECT on them TO {role}"
        )
