"""Values → JSON as all of Millrace's records have it, and what every envelope's source says."""

import importlib.metadata
import json
from typing import Any, Final


def _version() -> str:
    try:
        return importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:
        return "0"


VERSION: Final = _version()
"""``source.version``: Millrace's own."""
CONNECTOR: Final = "postgresql"


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, as all of Millrace's keys and values are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
