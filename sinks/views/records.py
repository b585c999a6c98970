"""Records of views ⇄ files of the lakehouse, next to the plans of its runs.

``_millrace/views/<name>.json`` is a view's own record, with its cut. ``_millrace/views/<run, 20
digits>.done.json`` has each view's version at the cut of a run of the lakehouse, for queries of
that cut.
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
    """A view's Delta table, as one definition makes it.

    ``tables`` are the names of its sources, which may be views. ``columns`` are those that it uses,
    by table and name: each one's identity and type. ``seen`` are all that existed. ``shown`` are
    its own, by name. ``keys`` identify its rows, and come from ``keys_from``. ``groups`` are
    computed again together. It ``is_timed`` if it uses the time.
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
        """Whether its history continues the rows of another one. Without one, rows are missing.

        With other keys, the rows are different ones.
        """
        keys = (self.keys, self.keys_from)
        return before is None or (before.history and (before.keys, before.keys_from) == keys)

    def __str__(self) -> str:
        return "table"


class ViewRecord(CutRecord[ViewGeneration]):
    """A view's state. Its Delta table has the ``version`` at its cut.

    ``step`` is the number of its last commit, or of the one in progress.
    """

    version: TableVersion | None = None
    step: int = 0


class ViewsAtCut(BaseModel):
    """The versions of the views at the cut of a ``run`` of the lakehouse, once they exist.

    ``failed`` has those without this cut, and why. ``tables`` has the changes of each view.
    ``ts_ms`` is when they were done, and it took ``seconds``.
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
        """Return the views that have a record, configured or not."""
        names = (name.removesuffix(".json") for name in self._files.names() if _is_view(name))
        return sorted(names)

    def view(self, name: str) -> ViewRecord | None:
        """Return a view's own record, if it has one."""
        return self._read(ViewRecord, f"{name}.json")

    def write(self, name: str, record: ViewRecord) -> None:
        """Record a view's state."""
        self._files.replace(f"{name}.json", record.model_dump_json())

    def at_cut(self, run: int) -> ViewsAtCut | None:
        """Return the views at the cut of a run. None: no run of views has reached it.

        None also for a damaged record, as views continue from their own records.
        """
        try:
            return self._read(ViewsAtCut, _done_name(run))
        except DamagedError:
            return None

    def damage(self, run: int) -> DamagedError | None:
        """Return why the views at the cut of a run are unknown, if so."""
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
        """Return the runs at whose cuts views are recorded, ascending."""
        matches = map(_DONE.fullmatch, self._files.names())
        return sorted(int(match[1]) for match in matches if match)

    def forget(self, before_run: int) -> int:
        """Remove records of cuts of earlier runs. Return their number."""
        old = [run for run in self.runs() if run < before_run]
        for run in old:
            self._files.remove(_done_name(run))
        return len(old)

    def tidy(self) -> None:
        """Remove the remains of processes that died while they wrote."""
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
    """Return the records of a lakehouse. ``session`` is called if its file system needs the JVM."""
    folder, where = local_path(location), f"{location.rstrip('/')}/_millrace/views"
    files: Files = (
        HadoopFiles(session(), where)
        if folder is None
        else LocalFiles(folder / "_millrace" / "views")
    )
    return ViewRecords(files, where)


def view_path(location: str, name: str) -> str:
    """Return the path of a view's Delta table."""
    return f"{location.rstrip('/')}/views/{name}"


def made_folders(
    lakehouse: LakehouseSettings, prefix: str, records: ViewRecords
) -> dict[Path, bool]:
    """Return local folders of views and histories, and whether a run of views created each.

    Raise a sink's error if they can't be checked.
    """
    folders: dict[Path, bool] = {}
    for view in records.names():
        for name in (view, history_name(view)):
            derived = derived_view(lakehouse, name)
            path = local_path(derived.path)
            if path is not None and (name == view or log_folder(derived) is not None):
                folders[path] = stranger_of_view(derived, prefix) is None
    return folders
