"""The user who runs us -> the user a server runs as, and folders that this user can reach.

PostgreSQL's server refuses to run as root. Where we are root (CI, containers) it runs as an
unprivileged user that exists already; its binaries and its data then have to lie below folders that
this user can traverse, which a home folder of root usually isn't. Everybody else runs it as
themselves.
"""

import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# `nobody` first: an account `postgres` may own a real server's files, which a superuser of our
# throw-away server could then read.
_CANDIDATES: Final = ("nobody", "postgres")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the operating system, as a child process needs it."""

    name: str
    uid: int
    gid: int

    def reaches(self, path: Path) -> bool:
        """Say whether this user may traverse every folder on the way to `path`, and enter it."""
        resolved = path.resolve()
        return all(self._may_search(folder.stat()) for folder in (resolved, *resolved.parents))

    def _may_search(self, status: os.stat_result) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def unprivileged() -> Account | None:
    """Return the account to drop to where we are root, and nothing where we aren't."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    names = " or ".join(_CANDIDATES)
    raise LookupError(f"PostgreSQL refuses to run as root, and there is no user {names} to run it")


def run_folder(prefix: str = "millrace-") -> Path:
    """Make a temporary folder below which every server of ours can work."""
    account = unprivileged()
    if account is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - mkdtemp is safe there
        if Path(parent).is_dir() and account.reaches(Path(parent)):
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            folder.chmod(0o755)
            return folder
    raise LookupError(f"no temporary folder that the user {account.name} can reach; set TMPDIR")
