"""Something that keeps nobody from capturing, and that a user would rather know."""

from typing import NamedTuple


class Risk(NamedTuple):
    """What may harm the source, or isn't what the user wants, and what mends it.

    ``requirement`` names what it is about, in a word or two.
    """

    requirement: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"
