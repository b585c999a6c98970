"""``millrace init``, ``run`` and ``new-epoch``: a configuration file → a daemon, until it ends."""

import contextlib
import errno
import gc
import importlib.resources
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer

from cdc.capture.daemon import Daemon
from cdc.capture.slot_lease import StoppedError
from cdc.errors import ConfigError, ExitCode
from cdc.postgres.checks.standby import StandbyWatch
from cdc.settings import DEFAULT_PATH, Settings, load
from deploy.commands import console
from deploy.commands.app import ConfigOption, JsonOption, stop_on_signals
from deploy.commands.health import HealthServer
from deploy.commands.metrics import daemon_registry
from deploy.commands.printing import print_line
from snapshots.channel import open_channel
from snapshots.initial import InitialSnapshot
from snapshots.pace import Pace

log = structlog.get_logger()

_GC_THRESHOLD: Final = 50_000
"""Rows make no reference cycles, so a search after every 700 new objects wastes time."""


def init(
    path: Annotated[Path, typer.Argument(help="Write this file.")] = DEFAULT_PATH,
    *,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration file."""
    text = importlib.resources.files("deploy").joinpath("example.toml").read_text(encoding="utf-8")
    try:
        _write(path, text, replace=force)
    except FileExistsError:
        raise ConfigError(
            "the file exists", where=str(path), remedy="add --force to overwrite it"
        ) from None
    except OSError as error:
        raise ConfigError(f"can't write: {error.strerror}", where=str(path)) from None
    print(f"wrote {path}: fill in its sections, then run `millrace check` and `millrace run`")


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Write a file only for its owner: whole, or not at all.

    A replaced file keeps its owner, group and mode. Raise OSError.
    """
    before = path.lstat() if os.path.lexists(path) else None
    if before is not None:
        if not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if not stat.S_ISREG(before.st_mode):
            raise OSError(
                errno.EINVAL, "it is a link, a folder or a device: give the path of a regular file"
            )
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            if before is not None:
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, stat.S_IMODE(before.st_mode))
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def run(config: ConfigOption = DEFAULT_PATH, *, json_log: JsonOption = False) -> None:
    """Capture tables: read existing rows, then stream changes.

    SIGTERM and SIGINT end it cleanly: it writes the changes that it has read, and commits.
    """
    use_daemon(prepare_to_capture("run", config, json=json_log), Daemon.run, answers=True)


def new_epoch(
    config: ConfigOption = DEFAULT_PATH,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Begin the new epoch; without it, show what is wrong.")
    ] = False,
    json_log: JsonOption = False,
) -> None:
    """Let the log continue after a gap, from the source as it is now.

    `millrace run` then reads every table again. Rows that no longer exist disappear from derived
    tables. The log keeps everything that it has.
    """
    settings = prepare_to_capture("new-epoch", config, json=json_log)
    if not yes:
        use_daemon(settings, lambda daemon, stop: print_line(daemon.find_gap(stop)))
        print("nothing was changed; add --yes to begin a new epoch, which reads all tables again")
        return

    def begin(daemon: Daemon, stop: threading.Event) -> None:
        epoch = daemon.begin_epoch(stop)
        print(f"epoch {epoch} begins: `millrace run` creates a new slot and reads all tables again")

    if use_daemon(settings, begin):
        raise typer.Exit(ExitCode.INTERRUPTED)


def prepare_to_capture(command: str, path: Path, *, json: bool) -> Settings:
    """Read the settings, begin the log, and log what others on the network can read."""
    settings = load(path)
    settings.require_own_capture(command)
    console.configure_logging(json=json)
    for exposure in settings.exposures:
        log.warning(exposure.what, where=exposure.where, remedy=exposure.remedy)
    return settings


def use_daemon(
    settings: Settings,
    use: Callable[..., None],
    *arguments: object,
    answers: bool = False,
    threads: int | None = None,
) -> bool:
    """Use a command's daemon until it ends. Return whether a signal stopped it, even in a wait.

    Only a daemon that ``answers`` for its health opens the port, as others run next to it.
    ``threads`` replaces snapshot.max.threads.
    """
    if threads is not None:
        capture = settings.capture.model_copy(update={"snapshot_max_threads": threads})
        settings = settings.model_copy(update={"capture": capture})
    capture = settings.capture
    pace = Pace(capture.snapshot_rows_per_second_max, adaptive=capture.snapshot_adaptive)
    backfill, standby = InitialSnapshot(settings.source, capture, pace), StandbyWatch()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    with (
        stop_on_signals() as stop,
        console.ConsoleObserver(standby_trouble=standby.trouble) as observer,
        contextlib.ExitStack() as stack,
    ):
        channel = partial(open_channel, pace, standby_watch=standby)
        daemon = Daemon(settings, backfill, observer, channel)
        daemon.health.standby_trouble = standby.trouble
        if answers and settings.health.listen is not None:
            metrics = daemon_registry(daemon.health, daemon.refusals, lambda: pace.rate)
            stack.enter_context(HealthServer(settings.health.listen, daemon.health, metrics))
        with contextlib.suppress(StoppedError):
            use(daemon, *arguments, stop)
        return stop.is_set()
