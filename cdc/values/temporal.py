"""PostgreSQL's text of dates and times → Debezium's numbers and strings, over their whole range.

Expects the pinned session: TimeZone=UTC, DateStyle=ISO. The calendar is the proleptic Gregorian
one, as PostgreSQL's; ``BC`` years count as 1 BC = 0, 2 BC = -1 (ISO 8601). Texts of the usual
shape are checked by the standard library's C code, the rest (BC, years past 9999, infinity) by
the patterns below. Anything else is a ValueError.
https://www.postgresql.org/docs/current/datatype-datetime.html
"""

import re
from datetime import date, datetime
from typing import Final

DATE_INFINITY: Final = (2_147_483_647, -2_147_483_648)
"""Epoch days of the dates infinity and -infinity: beyond every real date."""
TIMESTAMP_INFINITY: Final = (9_223_372_036_825_200_000, -9_223_372_036_832_400_000)
"""Debezium's numbers for infinity and -infinity; the same in milliseconds and microseconds."""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # the naive zero of timestamps without a zone
_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_DATE_SHAPE = b"0000-00-00"
_SECOND_SHAPE = b"0000-00-00 00:00:00"
_TIMESTAMP_SHAPES = frozenset(
    [_SECOND_SHAPE, *(_SECOND_SHAPE + b"." + b"0" * digits for digits in range(1, 7))]
)
_MICROSECOND_SHAPE = _SECOND_SHAPE + b".000000+00"
_UTC_SHAPES = frozenset(shape + b"+00" for shape in _TIMESTAMP_SHAPES)

_DATE = re.compile(rb"(\d{4,7})-(\d\d)-(\d\d)( BC)?")
_TIMESTAMP = re.compile(
    rb"(\d{4,7}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?P<utc>\+00)?( BC)?"
)
_TIME = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?([+-]\d\d(?::\d\d(?::\d\d)?)?)?")
_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_OF_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def epoch_days(value: bytes) -> int:
    """Days since 1970-01-01."""
    if value.translate(_DIGITS_TO_ZERO) == _DATE_SHAPE:
        return date.fromisoformat(value.decode()).toordinal() - _EPOCH_DAY
    if value in {b"infinity", b"-infinity"}:
        return DATE_INFINITY[value[0] == 0x2D]
    match = _DATE.fullmatch(value)
    if match is None:
        raise ValueError("not a date")
    return _days(*_civil(match, match[4] is not None))


def time_us(value: bytes) -> int:
    """µs since midnight, up to 24:00:00."""
    match = _TIME.fullmatch(value)
    if match is None or match[5] is not None:
        raise ValueError("not a time of day")
    return _time_us(match[1], match[2], match[3], match[4])


def time_ms(value: bytes) -> int:
    """Milliseconds since midnight, of a time declared with at most 3 digits."""
    return _whole_ms(time_us(value))


def timestamp_us(value: bytes) -> int:
    """µs since 1970-01-01 of a timestamp without time zone.

    PostgreSQL's own range ends 30 years after that of 64 bits: those few give a larger number.
    """
    if value.translate(_DIGITS_TO_ZERO) in _TIMESTAMP_SHAPES:
        since = datetime.fromisoformat(value.decode()) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if value in {b"infinity", b"-infinity"}:
        return TIMESTAMP_INFINITY[value[0] == 0x2D]
    match = _TIMESTAMP.fullmatch(value)
    if match is None or match["utc"] is not None:
        raise ValueError("not a timestamp without time zone")
    day = _days(*_civil(_date_of(match[1]), match[7] is not None))
    return day * 86_400_000_000 + _time_us(match[2], match[3], match[4], match[5])


def timestamp_ms(value: bytes) -> int:
    """Milliseconds since 1970-01-01, of a timestamp declared with at most 3 digits."""
    microseconds = timestamp_us(value)
    return microseconds if microseconds in TIMESTAMP_INFINITY else _whole_ms(microseconds)


def zoned_timestamp(digits: int, value: bytes) -> str:
    """ISO 8601 in UTC with the declared number of fractional digits, as Debezium writes it."""
    shape = value.translate(_DIGITS_TO_ZERO)
    if shape in _UTC_SHAPES and value[-3:] == b"+00":
        text = value.decode()
        datetime.fromisoformat(text[:-3])
        if shape == _MICROSECOND_SHAPE:
            return f"{text[:10]}T{text[11:26]}Z"
        return f"{text[:10]}T{_padded(text[11:19], text[20:-3], digits)}Z"
    if value in {b"infinity", b"-infinity"}:
        return value.decode()
    match = _TIMESTAMP.fullmatch(value)
    if match is None or match["utc"] is None:
        raise ValueError("not a timestamp in UTC")
    year, month, day = _civil(_date_of(match[1]), match[7] is not None)
    _time_us(match[2], match[3], match[4], match[5])
    clock = b":".join(match.group(2, 3, 4)).decode()
    fraction = (match[5] or b"").decode()
    return f"{_iso(year, month, day)}T{_padded(clock, fraction, digits)}Z"


def zoned_time(value: bytes) -> str:
    """ISO 8601 time of day with its own offset: ``13:14:15.5+02:00``, ``Z`` for UTC."""
    match, _ = _zoned(value)
    offset = match[5].decode()
    clock = value[: match.start(5)].decode()
    if offset == "+00":
        return clock + "Z"
    return f"{clock}{offset}:00" if len(offset) == 3 else clock + offset


def utc_time_us(value: bytes) -> int:
    """µs since midnight in UTC of a time of day with an offset; 24:00:00 is the next midnight."""
    match, offset_s = _zoned(value)
    us = _time_us(match[1], match[2], match[3], match[4])
    return (us - offset_s * 1_000_000) % 86_400_000_000


def iso_time(us: int) -> str:
    """µs since midnight → ISO 8601 with as many fractional digits as there are."""
    seconds, fraction = divmod(us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    return f"{clock}.{fraction:06}".rstrip("0") if fraction else clock


def iso_date(value: bytes) -> str:
    """ISO 8601: ``2024-02-29``, ``-0043-03-15``, ``+10000-01-01``, infinity as it is."""
    if value.translate(_DIGITS_TO_ZERO) == _DATE_SHAPE:
        return date.fromisoformat(value.decode()).isoformat()
    if value in {b"infinity", b"-infinity"}:
        return value.decode()
    match = _date_of(value)
    return _iso(*_civil(match, match[4] is not None))


def iso_timestamp(value: bytes) -> str:
    """A timestamp without time zone as if it were UTC, with as many digits as there are."""
    bc = value.endswith(b" BC")
    if value in {b"infinity", b"-infinity"}:
        return value.decode()
    return zoned_timestamp(0, value[:-3] + b"+00 BC" if bc else value + b"+00")


def _zoned(value: bytes) -> tuple[re.Match[bytes], int]:
    """A time of day with an offset, checked, and the offset in seconds."""
    match = _TIME.fullmatch(value)
    if match is None or match[5] is None:
        raise ValueError("not a time of day with an offset")
    _time_us(match[1], match[2], match[3], match[4])
    hours, minutes, seconds = _offset_fields(match[5][1:])
    if minutes > 59 or seconds > 59 or hours > 15:
        raise ValueError("not an offset")
    seconds += hours * 3_600 + minutes * 60
    return match, -seconds if match[5][:1] == b"-" else seconds


def _offset_fields(offset: bytes) -> tuple[int, int, int]:
    """``hh[:mm[:ss]]`` → hours, minutes and seconds."""
    hours, _, minutes_and_seconds = offset.partition(b":")
    minutes, _, seconds = minutes_and_seconds.partition(b":")
    return int(hours), int(minutes or 0), int(seconds or 0)


def _iso(year: int, month: int, day: int) -> str:
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def _date_of(value: bytes) -> re.Match[bytes]:
    match = _DATE.fullmatch(value)
    if match is None:
        raise ValueError("not a date")
    return match


def _civil(match: re.Match[bytes], bc: bool) -> tuple[int, int, int]:
    """Year (astronomical), month and day, checked."""
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if year == 0 or not 1 <= month <= 12:
        raise ValueError("no such date")
    year = 1 - year if bc else year
    leap_day = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _DAYS_OF_MONTH[month - 1] + leap_day:
        raise ValueError("no such date")
    return year, month, day


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, for any year."""
    before = year - 1 if month <= 2 else year
    leap_days = before // 4 - before // 100 + before // 400
    return year * 365 + leap_days + _DAYS_BEFORE_MONTH[month - 1] + day - 719_528


def _time_us(hours: bytes, minutes: bytes, seconds: bytes, fraction: bytes | None) -> int:
    hour, minute, second = int(hours), int(minutes), int(seconds)
    microsecond = int((fraction or b"").ljust(6, b"0"))
    total = (hour * 3_600 + minute * 60 + second) * 1_000_000 + microsecond
    if minute > 59 or second > 59 or total > 86_400_000_000:
        raise ValueError("no such time of day")
    return total


def _whole_ms(microseconds: int) -> int:
    milliseconds, rest = divmod(microseconds, 1_000)
    if rest:
        raise ValueError("more fractional digits than declared")
    return milliseconds


def _padded(clock: str, fraction: str, digits: int) -> str:
    if not digits and not fraction:
        return clock
    return f"{clock}.{fraction.ljust(digits, '0')}"
