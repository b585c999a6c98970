"""Text from TOML or the environment → durations, lists, patterns and library options, validated."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, field_validator

_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)\Z")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_NUMBER_MAX: Final = 2**31 - 1
"""The limit of Java, Kafka and the system calls for these values."""
_SIZE: Final = re.compile(r"(\d+)\s*(B|kB|MB|GB|TB)?\Z")
_SIZE_UNITS: Final = {"B": 0, "kB": 10, "MB": 20, "GB": 30, "TB": 40}
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(\d{1,5})\Z")
_COMMA: Final = re.compile(r"(?<!\\),")


def _duration(value: object) -> object:
    match = _DURATION.match(value) if isinstance(value, str) else None
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else value
    except OverflowError:
        raise ValueError(f"{value} is too long") from None


class Bytes(int):
    """A number of bytes, which may be larger than other numbers."""


def _size(value: object) -> object:
    """Parse PostgreSQL's units: 1 kB is 1,024 bytes."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = _SIZE.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a whole number, or one with B, kB, MB, GB or TB")
    return int(match[1]) << _SIZE_UNITS[match[2] or "B"]


def _address(value: str) -> str:
    match = _ADDRESS.match(value)
    if match is None or not 0 < int(match[1]) < 1 << 16:
        raise ValueError("must be address:port, such as 127.0.0.1:8080, 0.0.0.0:8080, [::]:8080")
    return value


def names(value: object) -> object:
    r"""Debezium's form is one comma-separated string (``\,``: a comma); an array does as well."""
    if isinstance(value, str):
        items = (item.strip() for item in _COMMA.split(value))
        return tuple(item.replace("\\,", ",") for item in items if item)
    return value


def split(data: Any, is_member: Callable[[str], bool]) -> tuple[Any, dict[str, Any]]:
    """Split off keys that contain a number or a name, as these can't be fields."""
    if not isinstance(data, Mapping):
        return data, {}
    members = {key: value for key, value in data.items() if is_member(str(key))}
    return {key: value for key, value in data.items() if key not in members}, members


def repeated(names: Sequence[str]) -> str:
    """Return the names that occur more than once, for a message. Empty: none does."""
    return ", ".join(sorted({name for name in names if names.count(name) > 1}))


def _option(value: object) -> object:
    """Return a library's option as text, whatever TOML or the environment makes of it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def web_address(value: str) -> str:
    """Return a valid URL. The error doesn't show it, as it may contain a password."""
    try:
        url = urlsplit(value)
        is_one = bool(url.hostname) and url.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError("must be a URL, such as https://host:9200, with a %-encoded password")
    return value


def regex(value: str) -> str:
    """Return a valid pattern."""
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"isn't a regular expression: {error}") from error
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size), AfterValidator(Bytes)]
Address = Annotated[str, AfterValidator(_address)]
Pattern = Annotated[str, BeforeValidator(regex)]
Names = Annotated[tuple[str, ...], BeforeValidator(names)]
PatternList = Annotated[tuple[Pattern, ...], BeforeValidator(names)]
Option = Annotated[str, BeforeValidator(_option)]
LibraryOptions = dict[str, Option]


class Section(BaseModel):
    """A part of the settings: frozen, without unknown keys, and without input in its errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, Bytes) and value > _NUMBER_MAX:
            raise ValueError(f"must be at most {_NUMBER_MAX}")
        return value
