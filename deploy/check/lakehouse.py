"""[lakehouse] → whether merges can write there, tried with a file that is removed at once."""

import os
import secrets
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Final

from cdc.errors import ConfigError, SinkError
from cdc.lines import toml_text
from cdc.postgres.described import TableDescription
from cdc.settings import Settings
from cdc.settings.lakehouse import LakehouseSettings
from deploy.check.applied import APPLIED, DERIVED
from deploy.check.result import Area, CheckResult, Unanswered
from deploy.check.runner import CheckResults
from deploy.check.scene import Scene, captured_of
from deploy.check.standing import DELTA, check_standing
from sinks.changes.derived import Derived, local_path
from sinks.run.owner import require_lock, require_owner
from sinks.run.wanted import CapturedTables, lakehouse_tables
from sinks.spark.files import LocalFiles

_PROBE: Final = ".millrace-check-"
_ONLY_SPARK: Final = "run `millrace merge lakehouse` once: it checks this"


def check_lakehouse(scene: Scene) -> Iterator[CheckResult]:
    """Check the location and the names of derived tables."""
    part, settings = Area("lakehouse"), scene.settings
    lakehouse = settings.lakehouse
    if lakehouse is None:
        return
    yield part.tried("writing", partial(_writes, lakehouse))
    if local_path(lakehouse.path) is None:
        why, remedy = f"only Spark can reach {lakehouse.path}", _ONLY_SPARK
        for requirement in (APPLIED, DELTA, DERIVED):
            yield part.unknown(requirement, why, remedy)
    else:
        yield from check_standing(part, scene, lakehouse)
    if not settings.captures_itself:
        return  # only the topics have their names
    tables = scene.tables.get()
    if tables is None:
        yield part.unknown("names", "the captured tables are unknown")
        return
    yield from _names(part, settings, captured_of(settings.capture, tables), tables)


def _writes(lakehouse: LakehouseSettings) -> str | Unanswered:
    """Create a file as plans do: only one of two requests for its name may succeed."""
    location = lakehouse.path
    folder = local_path(location)
    if folder is None:
        return Unanswered(
            f"only Spark can reach {location}, and this command doesn't start Spark",
            _ONLY_SPARK,
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
                "two runs can create the same file on this file system; plans need the second"
                " one to fail",
                where=str(place),
                remedy="choose a path on another file system in [lakehouse]",
            )
    finally:
        files.remove(name)
    free = shutil.disk_usage(place).free
    user = "root" if os.geteuid() == 0 else "this user"
    return f"{user} can create files atomically in {place}; {free / (1 << 30):,.1f} GiB are free"


def _names(
    part: Area,
    settings: Settings,
    captured: CapturedTables,
    tables: list[TableDescription],
) -> CheckResults:
    """Check that derived tables have distinct names and paths, and report renamed columns."""
    try:
        derived, _ = lakehouse_tables(settings, captured)
    except ConfigError as error:
        yield part.of_error("names", error)
        return
    columns = {str(table.name): [column.name for column in table.columns] for table in tables}
    taken = [table for table in derived.values() if _taken(table, columns[table.source])]
    for table in taken:
        names = ", ".join(_taken(table, columns[table.source]))
        yield part.warning(
            "names",
            f"derived table {table.name}: other columns already have these names in another case:"
            f" {names} get the suffix __2",
            f"choose their names: [[lakehouse.tables]] source = {toml_text(table.source)}, rename"
            " = { … }",
        )
    if not taken:
        yield part.ok("names", f"{len(derived)} derived tables, each with a name of its own")


def _taken(table: Derived, columns: list[str]) -> list[str]:
    """Return columns whose names are Millrace's own, or differ from another's only by case."""
    used = {name.lower() for name in table.reserved}
    taken = []
    for name in columns:
        called = table.options.rename.get(name, name).lower()
        taken += [name] if called in used else []
        used.add(called)
    return taken
