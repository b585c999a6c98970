"""Roles with more or less power → the daemon's findings, with the line that corrects each."""

from collections.abc import Callable

import pytest

from cdc.postgres.captured import captured_tables
from cdc.postgres.checks.powers import find_powers
from cdc.postgres.connection import connect
from tests.fixtures.source import Conninfo, capture, run

pytestmark = [pytest.mark.postgres]
MakeRole = Callable[[str], Conninfo]
DISABLED = {"publication_autocreate_mode": "disabled", "publication_name": "own"}


def powers(database: Conninfo, role: Conninfo, **more: object) -> list[str]:
    settings = capture(database, **more)
    with connect({**database, **role}, purpose="test") as connection:
        found = find_powers(connection, settings, captured_tables(connection, settings))
        return [str(risk) for risk in found]


@pytest.fixture(autouse=True)
def table(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION own FOR TABLE t")


def test_a_role_that_may_only_read_and_replicate_is_nothing_to_tell(
    database: Conninfo, role: MakeRole
) -> None:
    plain = role("REPLICATION")
    run(database, f"GRANT SELECT ON t TO {plain['user']}")
    assert powers(database, plain, **DISABLED) == []


def test_a_superuser_is_told_once(database: Conninfo, role: MakeRole) -> None:
    mighty = role("SUPERUSER CREATEROLE")
    (told,) = powers(database, mighty, **DISABLED)
    assert told.endswith(f"ALTER ROLE {mighty['user']} NOSUPERUSER;")


def test_a_role_that_may_become_a_superuser_is_one(database: Conninfo, role: MakeRole) -> None:
    mighty, plain = role("SUPERUSER"), role("NOINHERIT")
    run(database, f"GRANT {mighty['user']} TO {plain['user']}")
    (told,) = powers(database, plain, **DISABLED)
    assert "is or can become a superuser" in told
    run(database, told.rpartition("let a superuser run ")[2])
    assert powers(database, plain, **DISABLED) == []


def test_rights_over_roles_and_files_are_told_each_and_mended_by_the_lines(
    database: Conninfo, role: MakeRole
) -> None:
    strong = role("CREATEROLE")
    run(database, f"GRANT pg_read_server_files, pg_write_all_data TO {strong['user']}")
    told = powers(database, strong, **DISABLED)
    lines = [text.rpartition("let a superuser run ")[2] for text in told]
    assert lines == [
        f"ALTER ROLE {strong['user']} NOCREATEROLE;",
        f"REVOKE pg_read_server_files, pg_write_all_data FROM {strong['user']};",
    ]
    run(database, *lines)
    assert powers(database, strong, **DISABLED) == []


def test_power_by_a_group_is_told_with_the_group_that_carries_it(
    database: Conninfo, role: MakeRole
) -> None:
    plain, group, maker = role("REPLICATION"), role(""), role("CREATEROLE")
    run(database, f"GRANT pg_read_server_files TO {group['user']}")
    run(database, f"GRANT {group['user']}, {maker['user']} TO {plain['user']}")
    told = powers(database, plain, **DISABLED)
    lines = [text.rpartition("let a superuser run ")[2] for text in told]
    assert lines == [
        f"REVOKE {maker['user']} FROM {plain['user']};",
        f"REVOKE {group['user']} FROM {plain['user']};",
    ]
    run(database, *lines)
    assert powers(database, plain, **DISABLED) == []


def test_owning_captured_tables_is_told_where_nothing_needs_it(
    database: Conninfo, role: MakeRole
) -> None:
    owner, member = role(""), role("")
    run(database, f"ALTER TABLE t OWNER TO {owner['user']}")
    run(database, f"GRANT {owner['user']} TO {member['user']}")
    for each in (owner, member):
        (told,) = powers(database, each, **DISABLED)
        assert f"the role {each['user']}, or a role that it is a member of, owns captured" in told
        assert "public.t" in told
        assert powers(database, each) == [], "it has to own them, to publish them"


def test_of_many_owned_tables_a_few_are_named(database: Conninfo, role: MakeRole) -> None:
    owner = role("")
    names = ["t", *(f"t{i}" for i in range(5))]
    run(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names[1:]))
    run(database, f"ALTER PUBLICATION own SET TABLE {', '.join(names)}")
    run(database, *(f"ALTER TABLE {name} OWNER TO {owner['user']}" for name in names))
    (told,) = powers(database, owner, **DISABLED)
    assert "public.t3 … and 1 more another" in told
