"""The daemon's role → its powers that Millrace doesn't need, and an attacker could use.

The owner of a captured table influences the code that runs when its rows are read. A reader of the
daemon's configuration has its password. Neither should be worth more than the captured rows.
"""

from collections.abc import Iterator
from typing import Final

import psycopg

from cdc.lines import name_first
from cdc.postgres.checks.risk import Risk
from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable
from cdc.records.sql_names import quote, sql_names
from cdc.settings import CaptureSettings

POWERS: Final = "powers of the role"
"""The requirement of all risks in this module."""
_OWN: Final = "SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user"
# Through membership in one of these it can become, or has the rights of, that role and of further
# ones.
_CARRIERS: Final = """
SELECT carrier.rolname::text, bool_or(power.rolsuper), bool_or(power.rolcreaterole),
       bool_or(power.rolname = ANY (%s))
FROM pg_auth_members JOIN pg_roles AS carrier ON carrier.oid = roleid
     JOIN pg_roles AS power ON pg_has_role(carrier.oid, power.oid, 'MEMBER')
WHERE member = (SELECT oid FROM pg_roles WHERE rolname = current_user)
GROUP BY 1 ORDER BY 1
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
_PAGE: Final = "docs/explanation/security.md has the SQL for a role of Millrace's own"


def find_powers(
    connection: psycopg.Connection, settings: CaptureSettings, captured: list[CapturedTable]
) -> Iterator[Risk]:
    """Yield the role's excess powers, each with the SQL that revokes it."""
    role = quote(connection.info.user)
    ((is_super, makes_roles),) = query(connection, _OWN)
    carriers = list(query(connection, _CARRIERS, [_POWERFUL]))
    supers, makers, powerful = ([row[0] for row in carriers if row[i]] for i in (1, 2, 3))
    if is_super or supers:
        line = f"ALTER ROLE {role} NOSUPERUSER;" if is_super else _revoke(supers, role)
        yield Risk(
            POWERS,
            f"the role {role} is or can become a superuser; capturing doesn't need this",
            f"{_PAGE}; or let a superuser run {line}",
        )
        return
    if makes_roles:
        yield Risk(
            POWERS,
            f"the role {role} can create and change roles; capturing doesn't need this",
            f"let a superuser run ALTER ROLE {role} NOCREATEROLE;",
        )
    if makers:
        yield Risk(
            POWERS,
            f"the role {role} can become a role that creates and changes roles; capturing doesn't"
            " need this",
            f"let a superuser run {_revoke(makers, role)}",
        )
    if powerful:
        yield Risk(
            POWERS,
            f"the role {role} has server-wide rights that capturing doesn't need",
            f"let a superuser run {_revoke(powerful, role)}",
        )
    if settings.publication_autocreate_mode == "filtered":
        return  # only owners may publish
    owned = {oid for (oid,) in query(connection, _OWNED, [[table.oid for table in captured]])}
    if names := sorted(table.name for table in captured if table.oid in owned):
        named = name_first(sql_names([name]) for name in names)
        yield Risk(
            POWERS,
            f"the role {role}, or a role that it is a member of, owns captured tables; SELECT is"
            " enough",
            f"give {named} another owner, and GRANT SELECT on them TO {role}",
        )


def _revoke(carriers: list[str], role: str) -> str:
    return f"REVOKE {', '.join(map(quote, carriers))} FROM {role};"
