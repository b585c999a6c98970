"""What is recorded of views ⇄ files of the lakehouse, beside the plans of its runs.

``_millrace/views/<name>.json`` is a view's own record: the cut that it stands at. And
``_millrace/views/<run, 20 digits>.done.json`` has each view's version at the cut of a run of the
lakehouse, which a query of that cut reads.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.errors import LogFormatError
from cdc.settings import LakehouseSettings
from cdc.settings.views import history_name
from sinks.changes.derived import derived_view, local_path
from sinks.run.cut_run import CutRecord
from sinks.run.owner import log_folder, stranger_of_view
from sinks.run.summary import TableCounts, TableVersion
from sinks.spark.files import (
    DamagedError,
    Files,
    HadoopFiles,
    LocalFiles,
    RunState,
    read_state,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DONE: Final = re.compile(r"(\d{20})\.done\.json")


class ViewGeneration(BaseModel):
    """A view's Delta table, as one definition has it.

    ``tables`` are the names of what it reads, which may be views. ``columns`` are those of them
    that it uses, by table and name: each one's identity and type; ``seen`` are all that there were.
    ``shown`` are its own, by name. By ``keys`` its rows are told apart, which come from
    ``keys_from``; by ``groups`` they are computed again. It ``is_timed`` where it asks for the
    time.
    """

    model_config = ConfigDict(frozen=True)

    query: str
    history: bool = False
    tables: tuple[str, ...] = ()
    columns: dict[str, str] = {}
    seen: dict[str, str] = {}
    shown: dict[str, str] = {}
    keys: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    keys_from: tuple[str, ...] = ()
    is_timed: bool = False

    def continues(self, before: "ViewGeneration | None") -> bool:
        """Whether its history goes on with the rows of another one: without one, rows are lacking.

        Rows that others tell apart aren't the same ones.
        """
        keys = (self.keys, self.keys_from)
        return before is None or (before.history and (before.keys, before.keys_from) == keys)

    def __str__(self) -> str:
        return "table"


class ViewRecord(CutRecord[ViewGeneration]):
    """Where a view is. Its Delta table has the ``version`` at the cut that it stands at.

    ``step`` is the number of its last commit, or of the one that is under way.
    """

    version: TableVersion | None = None
    step: int = 0


class ViewsAtCut(BaseModel):
    """The versions of the views at the cut of a ``run`` of the lakehouse, once they are there.

    ``failed`` are those that don't stand there, and why. ``tables`` is what was done to each that
    has changed. ``ts_ms`` is when they were brought there, in ``seconds``.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    run: int
    ts_ms: int
    seconds: float = 0.0
    versions: dict[str, TableVersion] = {}
    failed: dict[str, str] = {}
    tables: dict[str, TableCounts] = {}


class ViewRecords:
    """The records of all views of a lakehouse."""

    def __init__(self, files: Files, where: str) -> None:
        self._files = files
        self._where = where

    def names(self) -> list[str]:
        """The views that have a record, whether they are wanted or not."""
        names = (name.removesuffix(".json") for name in self._files.names() if _is_view(name))
        return sorted(names)

    def view(self, name: str) -> ViewRecord | None:
        """A view's own record, if it has one."""
        return self._read(ViewRecord, f"{name}.json")

    def write(self, name: str, record: ViewRecord) -> None:
        """Record where a view is."""
        self._files.replace(f"{name}.json", record.model_dump_json())

    def at_cut(self, run: int) -> ViewsAtCut | None:
        """The views at the cut of a run; None: no run of views has been there.

        The same goes for what is damaged: views have records of their own to go on from.
        """
        try:
            return self._read(ViewsAtCut, _done_name(run))
        except DamagedError:
            return None

    def damage(self, run: int) -> DamagedError | None:
        """Why nobody can tell which views were at the cut of a run, if that is so."""
        try:
            self._read(ViewsAtCut, _done_name(run))
        except DamagedError as error:
            error.remedy = "the next run of views records the newest cut again"
            return error
        return None

    def finish(self, views: ViewsAtCut) -> None:
        """Record the views at a cut."""
        self._files.replace(_done_name(views.run), views.model_dump_json())

    def runs(self) -> list[int]:
        """The runs at whose cuts views are recorded, ascending."""
        matches = map(_DONE.fullmatch, self._files.names())
        return sorted(int(match[1]) for match in matches if match)

    def forget(self, before_run: int) -> int:
        """Remove what is recorded of cuts of earlier runs; how many there were."""
        old = [run for run in self.runs() if run < before_run]
        for run in old:
            self._files.remove(_done_name(run))
        return len(old)

    def tidy(self) -> None:
        """Remove what processes have left that died while they wrote."""
        self._files.tidy()

    def _read(self, kind: type[RunState], name: str) -> RunState | None:
        try:
            return read_state(self._files, name, kind, self._where)
        except LogFormatError as error:
            error.what = f"can't read a view's state: {error.what}"
            error.remedy = (
                "if a newer Millrace wrote it, run that one; if it is damaged, remove it: the"
                " next run builds the view again"
            )
            raise


def _done_name(run: int) -> str:
    return f"{run:020}.done.json"


def _is_view(name: str) -> bool:
    return name.endswith(".json") and not _DONE.fullmatch(name) and not name.startswith(".")


def view_records(location: str, session: "Callable[[], SparkSession]") -> ViewRecords:
    """The records of a lakehouse; ``session`` is called where its file system needs the JVM."""
    folder, where = local_path(location), f"{location.rstrip('/')}/_millrace/views"
    files: Files = (
        HadoopFiles(session(), where)
        if folder is None
        else LocalFiles(folder / "_millrace" / "views")
    )
    return ViewRecords(files, where)


def view_path(location: str, name: str) -> str:
    """Where a view's Delta table is."""
    return f"{location.rstrip('/')}/views/{name}"


def made_folders(
    lakehouse: LakehouseSettings, prefix: str, records: ViewRecords
) -> dict[Path, bool]:
    """The folders of views and their histories on this machine; of each, if a run of views made it.

    Raises a sink's error where nobody can look.
    """
    folders: dict[Path, bool] = {}
    for view in records.names():
        for name in (view, history_name(view)):
            derived = derived_view(lakehouse, name)
            path = local_path(derived.path)
            if path is not None and (name == view or log_folder(derived) is not None):
                folders[path] = stranger_of_view(derived, prefix) is None
    return folders
