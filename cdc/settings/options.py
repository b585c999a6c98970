"""Text options of a named thing (a converter, a transform) → values, each known and valid."""

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

from cdc.errors import ConfigError
from cdc.records.topics import ADJUSTMENTS, Adjustment

T = TypeVar("T", bound=str)


class Options:
    """Options of one converter or transform. Every getter names the option in its ConfigError.

    Call ``refuse_unread`` at the end: an option that no getter has read doesn't exist.
    """

    def __init__(self, where: str, given: Mapping[str, str]) -> None:
        self._where = where
        self._given = given
        self._read: set[str] = set()

    def text(self, name: str, default: str = "") -> str:
        """Return an option's text without blanks around it."""
        self._read.add(name)
        return self._given.get(name, default).strip()

    def required(self, name: str) -> str:
        """Return an option that has no default."""
        value = self.text(name)
        if not value:
            raise self.wrong(name, "is required")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch."""
        value = self.text(name).lower()
        if value not in {"", "true", "false"}:
            raise self.wrong(name, "must be true or false")
        return value == "true" if value else default

    def choice(self, name: str, choices: Collection[T], default: T) -> T:
        """Return one of the choices, in any case."""
        value = self.text(name, default)
        for choice in choices:
            if choice.lower() == value.lower():
                return choice
        raise self.wrong(name, f"must be one of {', '.join(choices)}")

    def adjustment(self, name: str) -> Adjustment:
        """Return the adjustment of names; none by default."""
        return self.choice(name, ADJUSTMENTS, "none")

    def names(self, name: str) -> list[str]:
        """Return the items between the commas."""
        return [item.strip() for item in self.text(name).split(",") if item.strip()]

    def pattern(self, name: str, default: str = "") -> re.Pattern[str]:
        """Return a regular expression. Java's ``(?<name>…)`` becomes Python's ``(?P<name>…)``."""
        value = self.text(name, default) or self.required(name)
        try:
            return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", value))
        except re.error as error:
            raise self.wrong(name, f"isn't a regular expression: {error}") from None

    def under(self, prefixes: Collection[str]) -> dict[str, str]:
        """Return all options that begin with one of the prefixes, by their full names."""
        options = {
            name: value
            for name, value in self._given.items()
            if any(name.startswith(prefix) for prefix in prefixes)
        }
        self._read |= options.keys()
        return options

    @property
    def unread(self) -> set[str]:
        """Return the names of the options that no getter has read."""
        return self._given.keys() - self._read

    def refuse_unread(self, read_elsewhere: Collection[str] = ()) -> None:
        """Raise ConfigError for options that don't exist."""
        unread = sorted(self.unread - set(read_elsewhere))
        if unread:
            raise self.wrong(", ".join(unread), "is unknown")

    def wrong(self, name: str, why: str) -> ConfigError:
        """Return the error for a wrong option, without its value, which may be a secret."""
        return ConfigError(
            f"{name or 'this'} {why}",
            where=self._where,
            remedy="docs/reference/formats.md lists the options",
        )
