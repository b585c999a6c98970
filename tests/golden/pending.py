"""Cases that don't pass yet, by their reason; a case that passes must leave this list."""

from collections.abc import Mapping
from typing import Final

PENDING: Final[Mapping[str, str]] = {}

REASONS: Final[Mapping[str, str]] = {
    name: reason for reason, names in PENDING.items() for name in names.split()
}
