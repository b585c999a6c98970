"""[lakehouse] → whether merges can write there, tried with a file that is gone at once."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Final, NoReturn

from cdc.errors import ConfigError, MillraceError, SinkError
from cdc.postgres.described import TableDescription
from cdc.settings.lakehouse import LakehouseSettings
from deploy.check.applied import applied_of_log
from deploy.check.result import Area, CheckResult, Unanswered
from deploy.check.runner import CheckResults
from deploy.check.scene import Scene, captured_of
from sinks.changes.derived import Derived, local_path
from sinks.run.owner import foreign_tables, require_same_writer
from sinks.run.plans import LocalFiles, lakehouse_plans, require_lock, require_owner
from sinks.run.wanted import lakehouse_tables

_APPLIED: Final = "applied so far"
_PROBE: Final = ".millrace-check-"


def check_lakehouse(scene: Scene) -> Iterator[CheckResult]:
    """Where the derived tables go, and what they are called."""
    part, settings = Area("lakehouse"), scene.settings
    lakehouse = settings.lakehouse
    if lakehouse is None:
        return
    yield part.tried("writing", partial(_writes, lakehouse))
    if local_path(lakehouse.path) is None:
        yield part.unknown(_APPLIED, "because only Spark reaches it")
    else:
        yield from _applied(part, scene, lakehouse)
    tables = scene.tables.get()
    if not settings.captures_itself:
        return  # their names are in the topics alone
    if tables is None:
        yield part.unknown("names", "because nobody can tell which tables are captured")
        return
    yield from _names(part, lakehouse, tables)


def _writes(lakehouse: LakehouseSettings) -> str | Unanswered:
    """Make a file as plans are made: by one of two who ask for its name."""
    location = lakehouse.path
    folder = local_path(location)
    if folder is None:
        return Unanswered(
            f"because only Spark reaches {location}, and this starts none",
            "see that the first `millrace merge lakehouse` succeeds",
        )
    require_owner(location)
    require_lock(location)
    runs = folder / "_millrace" / "runs"
    place = next(path for path in (runs, *runs.parents) if path.exists())
    files, name = LocalFiles(place), f"{_PROBE}{secrets.token_hex(8)}"
    try:
        files.create(name, "")
        try:
            files.create(name, "")
        except FileExistsError:
            pass
        else:
            raise SinkError(
                "the file system lets two runs make one file: plans need that one of them fails",
                where=str(place),
                remedy="choose a path in [lakehouse] on another file system",
            )
    finally:
        files.remove(name)
    free = shutil.disk_usage(place).free
    user = "root" if os.geteuid() == 0 else "this user"
    return f"{user} makes files in {place} by atomic creation; {free / (1 << 30):,.1f} GiB are free"


def _applied(part: Area, scene: Scene, lakehouse: LakehouseSettings) -> CheckResults:
    """Whether runs of this log may go on from what stands there, as they look at it."""
    prefix, is_own = scene.settings.capture.topic_prefix, scene.settings.captures_itself
    try:
        last = lakehouse_plans(lakehouse.path, _no_session).last()
        if last is not None:
            require_same_writer(last, "lakehouse", prefix, lakehouse.topics_written_by)
    except MillraceError as error:
        yield part.of_error(_APPLIED, error)
        return
    if last is not None and is_own:
        yield from applied_of_log(part, scene, last)
    else:
        yield part.ok(_APPLIED, "nothing yet" if last is None else f"run {last.run}")
    tables = scene.tables.get()
    if tables is None or not is_own:
        return
    begun = [name for name, table in last.all_tables.items() if table.base] if last else []
    try:
        derived, _ = lakehouse_tables(lakehouse, captured_of(tables), begun)
    except ConfigError:
        return  # which is told of their names
    found = "no table of somebody else's is in the way"
    yield from part.of_errors("Delta tables", foreign_tables(derived, last, prefix), found)


def _no_session() -> NoReturn:
    raise AssertionError("a lakehouse on this machine is looked at without Spark")


def _names(
    part: Area, lakehouse: LakehouseSettings, tables: list[TableDescription]
) -> CheckResults:
    """Derived tables have names and paths of their own; columns may have to take others."""
    try:
        derived, _ = lakehouse_tables(lakehouse, captured_of(tables))
    except ConfigError as error:
        yield part.of_error("names", error)
        return
    columns = {str(table.name): [column.name for column in table.columns] for table in tables}
    taken = [table for table in derived.values() if _taken(table, columns[table.source])]
    for table in taken:
        names = ", ".join(_taken(table, columns[table.source]))
        yield part.warning(
            "names",
            f"derived table {table.name} has other columns of these names, whatever their case:"
            f" {names} get __2 behind",
            f"give them names: [[lakehouse.tables]] source = {json.dumps(table.source)},"
            " rename = { … }",
        )
    if not taken:
        yield part.ok("names", f"{len(derived)} derived tables, each with names of its own")


def _taken(table: Derived, columns: list[str]) -> list[str]:
    """Columns whose names are Millrace's own, or another column's but for the case."""
    used = {name.lower() for name in table.reserved}
    taken = []
    for name in columns:
        called = table.options.rename.get(name, name).lower()
        taken += [name] if called in used else []
        used.add(called)
    return taken
