"""The extension's sources → a digest, which the build puts into it and a start compares.

setup.py runs this file by its path, before anything of Millrace can be imported.
"""

from hashlib import sha256
from pathlib import Path


def digest() -> str:
    """Of fast.pyx and what it includes."""
    folder = Path(__file__).parent
    sources = sorted([*folder.glob("*.pyx"), *folder.glob("*.pxi")])
    return sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
