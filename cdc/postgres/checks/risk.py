"""A condition that doesn't prevent capturing, but that a user should know → its description."""

from typing import NamedTuple


class Risk(NamedTuple):
    """A possible harm to the source, or a mistake in the settings, with its remedy.

    ``requirement`` is its subject, in a word or two.
    """

    requirement: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"
