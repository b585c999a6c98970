"""A Maven repository, and this installation's list of jars → their folder.

Each file is checked against the list before it gets its name, and the folder gets its own once all
files exist. Files of an interrupted run are kept, and not fetched again.
"""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest, sha256
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import (
    HTTPBasicAuthHandler,
    HTTPPasswordMgrWithDefaultRealm,
    OpenerDirector,
    build_opener,
)

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from cdc.errors import BusyError, ConfigError, DiskError, SparkMissingError
from sinks.spark.jars import COMPLETE, OWN, REPOSITORY, Jar, jars_folder, manifest

TIMEOUT_S: Final = 60.0
"""How long to wait for an answer's next byte."""
_CHUNK: Final = 1 << 18

Notify = Callable[[str], None]


def fetch_jars(repository: str, report: Notify) -> None:
    """Fetch the listed jars into their folder, except those that are correct already."""
    folder = jars_folder()
    if not all(is_right(folder, jar) for jar in manifest().jars):
        opener = _opener(repository)
        try:
            _fill(folder, opener, _without_password(repository), report)
        except OSError as error:
            if (of_disk := DiskError.of(error, "can't store jars")) is not None:
                raise of_disk from None
            raise ConfigError(
                f"can't store jars: {error.strerror}",
                where=str(error.filename or folder),
                remedy="run this as the user who installed Millrace, or choose a folder with --to"
                " DIR, and set MILLRACE_JARS to it for merges",
            ) from None
    report(f"{len(manifest().jars)} jars in {folder}; Millrace's own: {OWN}")


def is_right(folder: Path, jar: Jar) -> bool:
    """Whether a folder has a jar as listed."""
    try:
        with (folder / jar.name).open("rb") as file:
            return file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _fill(folder: Path, opener: OpenerDirector, repository: str, report: Notify) -> None:
    """Fetch a folder's missing jars. A new folder appears with all of them."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.parent), _progress() as progress:
        # Another run may have created it in the meantime.
        place = folder if folder.exists() else folder.with_name(f"{folder.name}.fetching")
        place.mkdir(exist_ok=True)
        for jar in manifest().jars:
            if not is_right(place, jar):
                _fetch(jar, place, opener, repository, progress)
                if progress.disable:
                    report(f"fetched {jar.name}")
        (place / COMPLETE).touch()
        if place != folder:
            place.rename(folder)


def _fetch(
    jar: Jar, place: Path, opener: OpenerDirector, repository: str, progress: Progress
) -> None:
    """Fetch a jar, which gets its name once it was checked."""
    url, new = f"{repository.rstrip('/')}/{jar.path}", place / f".{jar.name}"
    task = progress.add_task(jar.name, total=None)
    digest = sha256()
    try:
        with new.open("wb") as file:
            for chunk, total in _download(url, opener):
                digest.update(chunk)
                file.write(chunk)
                progress.update(task, advance=len(chunk), total=total)
        if digest.hexdigest() != jar.sha256:
            raise SparkMissingError(
                f"{jar.name} isn't this release's file: its SHA-256 is {digest.hexdigest()}, not"
                f" {jar.sha256}",
                where=url,
                remedy="check the repository's file, or choose another repository",
            )
        new.replace(place / jar.name)
    finally:
        new.unlink(missing_ok=True)


def _download(url: str, opener: OpenerDirector) -> Iterator[tuple[bytes, int | None]]:
    """Yield the parts of a file, with its size if known."""
    came = 0
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            size = answer.headers.get("Content-Length", "")
            total = int(size) if size.isdigit() else None
            while chunk := answer.read(_CHUNK):
                came += len(chunk)
                yield chunk, total
    except HTTPError as error:
        raise _unfetched(url, f"{error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise _unfetched(url, str(getattr(error, "reason", error))) from None
    if total is not None and came < total:  # read(n) reports no early end
        raise SparkMissingError(
            f"the download of a jar was cut short: {came:,} of {total:,} bytes arrived",
            where=url,
            remedy="run `millrace jars` again: it continues",
        )


def _unfetched(url: str, reason: str) -> SparkMissingError:
    return SparkMissingError(
        f"can't download a jar: {reason}",
        where=url,
        remedy="check the repository's URL and the proxies (http_proxy, https_proxy, no_proxy); the"
        " next `millrace jars` continues",
    )


def _opener(repository: str) -> OpenerDirector:
    """Return an opener for the repository's URLs, with the password that its URL may have."""
    if not repository:
        raise ConfigError(
            "no Maven repository is given",
            where=f"--repository or {REPOSITORY}",
            remedy="give your company's repository, or Maven Central; Maven's documentation has its"
            ' address ("Introduction to Repositories")',
        )
    parts = urlsplit(repository)
    if parts.scheme not in {"http", "https", "file"}:
        raise ConfigError(
            "the repository's URL must begin with https://, http:// or file://",
            where=f"--repository or {REPOSITORY}",
        )
    passwords = HTTPPasswordMgrWithDefaultRealm()
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        passwords.add_password(None, _without_password(repository), user, password)
    return build_opener(HTTPBasicAuthHandler(passwords))


def _without_password(repository: str) -> str:
    parts = urlsplit(repository)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other runs from a folder. Raise BusyError if one uses it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError("another `millrace jars` is running", where=str(folder)) from None
        yield
    finally:
        os.close(handle)


def _progress() -> Progress:
    """Return a progress bar for each file, if a terminal shows it."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(*columns, disable=not sys.stdout.isatty())
