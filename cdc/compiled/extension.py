"""The extension's sources, and the one that is installed → whether a command can start with it.

setup.py runs this file by its path, before anything of Millrace can be imported: so a function
imports what it needs.
"""

from hashlib import sha256
from pathlib import Path
from typing import Final

_REMEDY: Final = (
    "`make environment` in a clone, else install Millrace again: from a wheel for this Python, or"
    " with a C compiler and Python's headers (Debian: build-essential and python3-dev)"
)


def digest() -> str:
    """Of fast.pyx and what it includes: the build puts it into the extension."""
    folder = Path(__file__).parent
    sources = sorted([*folder.glob("*.pyx"), *folder.glob("*.pxi")])
    return sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def require_extension() -> None:
    """Raise ExtensionError unless the extension is there, built from the sources beside it."""
    from cdc.errors import ExtensionError

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
