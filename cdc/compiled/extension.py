"""The extension that is installed → whether a command can start with it."""

from pathlib import Path
from typing import Final

from cdc.compiled.sources import digest
from cdc.errors import ExtensionError

_REMEDY: Final = (
    "`make environment` in a clone, else install Millrace again; both need a C compiler and"
    " Python's headers (Debian: build-essential and python3-dev)"
)


def require_extension() -> None:
    """Raise ExtensionError unless the extension is there, built from the sources beside it."""
    try:
        from cdc.compiled import fast
    except ImportError as error:
        raise ExtensionError(
            f"Millrace's compiled part can't be loaded: {error}",
            where=str(Path(__file__).with_name("fast")),
            remedy=_REMEDY,
        ) from None
    if digest() != fast.SOURCES:
        raise ExtensionError(
            "Millrace's compiled part was built from other sources than these",
            where=str(fast.__file__),
            remedy=_REMEDY,
        )
