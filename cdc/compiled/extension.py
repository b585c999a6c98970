"""The compiled part (fast.pyx), or None where there was no compiler when Millrace was installed."""

from typing import Final

import structlog

try:
    from cdc.compiled import fast
except ImportError:
    fast = None  # type: ignore[assignment]

__all__ = ["IMPLEMENTATION", "fast", "warn_if_pure"]

IMPLEMENTATION: Final = "pure Python" if fast is None else "compiled"
"""Which way common messages take, for people."""


def warn_if_pure() -> None:
    """Tell the user that it could be much faster."""
    if fast is None:
        structlog.get_logger().warning(
            "decoding in pure Python, many times slower: there was no C compiler (or Python's"
            " headers, python3-dev) when Millrace was installed",
            remedy="install them, then install Millrace again",
        )
