"""This machine → room for spilled data, readers of secrets, and the network's exposure."""

import errno
import shlex
import shutil
import socket
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from cdc.settings import Settings
from cdc.settings.loading import files_named
from cdc.stream.in_progress import check_spill, spill_directory
from deploy.check.result import Area, CheckResult, Unanswered
from deploy.check.scene import Scene
from deploy.commands.health import not_listening

SPILL_BYTES: Final = 1 << 30
"""One large transaction soon fills less room than this."""
_KEY_FILES: Final = {
    "kafka": ("ssl.key.location", "ssl.keystore.location", "sasl.kerberos.keytab"),
    "source": ("sslkey", "passfile"),
    "snapshot_source": ("sslkey", "passfile"),
}
"""Section → keys with names of files that other users must not read."""


def check_machine(scene: Scene) -> Iterator[CheckResult]:
    """Check everything that belongs to no server."""
    part, settings = Area("machine"), scene.settings
    yield from _spill(part, settings)
    yield from _modes(part, settings, Path(scene.config))
    if settings.health.listen is not None:
        yield part.tried("[health] listen", partial(_listen, settings.health.listen))
    exposures = settings.exposures
    for exposure in exposures:
        yield part.warning("plain text", exposure.what, exposure.remedy, exposure.where)
    if not exposures:
        yield part.ok("plain text", "passwords and rows leave this machine encrypted only")
    if settings.format or settings.transforms:
        yield part.tried("[format] and [transforms]", partial(_pipeline, settings))


def _spill(part: Area, settings: Settings) -> Iterator[CheckResult]:
    directory = spill_directory(settings.capture.spill_directory)

    def room() -> str:
        check_spill(directory)
        return f"{shutil.disk_usage(directory).free / (1 << 30):,.1f} GiB are free in {directory}"

    tried = part.tried("spill.directory", room)
    yield tried
    if not tried.exit_code and (free := shutil.disk_usage(directory).free) < SPILL_BYTES:
        yield part.warning(
            "spill.directory",
            f"{directory} has {free:,} bytes free for transactions that are too large for memory",
            "free some space, or set spill.directory in [capture] to another disk",
        )


def _modes(part: Area, settings: Settings, config: Path) -> Iterator[CheckResult]:
    """Check that only their owner and group can read files with passwords or keys."""
    named = {section: getattr(settings, section) for section in _KEY_FILES}
    keys = (
        Path(named[s][key]) for s, names in _KEY_FILES.items() for key in names if key in named[s]
    )
    files = dict.fromkeys((config, *files_named(config), *keys))
    open_files = []
    for file in files:
        try:
            mode = file.stat().st_mode
        except OSError:
            continue  # its reader reports that
        if mode & stat.S_IROTH:
            open_files.append(file)
            yield part.warning(
                "modes of files",
                f"every user of this machine can read {file}, which may contain secrets",
                f"chmod o-rwx {shlex.quote(str(file))}",
            )
    if not open_files:
        yield part.ok("modes of files", f"{len(files)} files, each closed to other users")


def _listen(listen: str) -> str | Unanswered:
    """Open the port for a moment, as a start does permanently."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, int(port)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise not_listening(listen, error) from None
            return Unanswered(
                f"something listens on {listen}",
                "if it isn't the daemon, choose a free port",
            )
    return f"{listen} is free"


def _pipeline(settings: Settings) -> str:
    """Build the pipeline of these sections as a start does. Asks a schema registry."""
    from cdc.capture.wiring import pipeline

    pipeline(settings, lambda *_: None)
    return "they fit each other"
