"""The extensions' sources and the installed ones → whether a command can start with them.

setup.py runs this file by its path before it can import Millrace. So each function imports what it
needs.
"""

from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Final

_REMEDY: Final = (
    "`make environment` in a clone; otherwise install Millrace again, from a wheel for this"
    " Python, or with a C compiler and Python's headers (Debian: build-essential and"
    " python3-dev)"
)


INCLUDES: Final = {
    "fast": ("copied", "json_text", "json_values", "rows", "table", "transactions", "writing"),
    "digests": ("read_texts", "xxh64"),
}
"""Extension → the files that its source includes."""


def digest(name: str) -> str:
    """Digest an extension's source and its includes. The build puts it into the extension."""
    folder = Path(__file__).parent
    included = [folder / f"{each}.pxi" for each in INCLUDES[name]]
    sources = sorted([folder / f"{name}.pyx", *included])
    return sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def require_extension(name: str = "fast") -> None:
    """Raise ExtensionError unless the extension exists and was built from these sources."""
    from cdc.errors import ExtensionError

    try:
        extension = import_module(f"cdc.compiled.{name}")
    except ImportError as error:
        raise ExtensionError(
            f"can't load Millrace's compiled part: {error}",
            where=str(Path(__file__).with_name(name)),
            remedy=_REMEDY,
        ) from None
    if digest(name) != extension.SOURCES:
        raise ExtensionError(
            "Millrace's compiled part was built from other sources",
            where=str(extension.__file__),
            remedy=_REMEDY,
        )
