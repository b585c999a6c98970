"""Codecs of dates, times, timestamps and intervals, by time.precision and interval.handling.mode.

Expects the pinned session: TimeZone=UTC, DateStyle=ISO, IntervalStyle=iso_8601. The calendar is the
proleptic Gregorian one, as in PostgreSQL; ``BC`` years count as 1 BC = 0, 2 BC = -1 (ISO 8601). The
standard library's C code checks texts of the usual shape, and the patterns below check the rest
(BC, years past 9999). If Debezium's numbers overflow, ``lossless`` has the exact number, which
exceeds 64 bits. https://www.postgresql.org/docs/current/datatype-datetime.html
"""

import re
from collections.abc import Mapping
from datetime import date, datetime
from functools import partial
from typing import Any, Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values.blocks import Codec, Decode, ValueKind, named

_DAY_US: Final = 86_400_000_000
_DAYS_PER_MONTH: Final = 365.25 / 12
_MONTH_US: Final = 2_629_800_000_000
"""30.4375 days: Debezium's average month."""
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


def _ends(positive: Any, negative: Any) -> Mapping[bytes, Any]:
    """Return the values of the texts infinity and -infinity."""
    return {b"infinity": positive, b"-infinity": negative}


_WORDS: Final = _ends("infinity", "-infinity")
_INT64: Final = _ends(_INT64_MAX, _INT64_MIN)
_DAYS: Final = _ends(2_147_483_647, -2_147_483_648)
"""Beyond every real date."""
_TIMESTAMPS: Final = _ends(9_223_372_036_825_200_000, -9_223_372_036_832_400_000)
"""Debezium's numbers, the same in milliseconds and microseconds."""
_DEBEZIUM_DAYS: Final = _ends(-2_147_472_692, -2_147_472_691)
_DEBEZIUM_ISO_DATES: Final = _ends("-5877611-06-21Z", "-5877611-06-22Z")
"""The values in Debezium's stream. Its snapshot has four other values."""
_DEBEZIUM_ISO_TIMESTAMPS: Final = _ends("+294247-01-10T04:00:25.2Z", "-290308-12-21T19:59:27.6Z")

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # the naive zero of timestamps without a zone
_DAYS_OF_CYCLE: Final = 146_097
"""The calendar repeats itself every 400 years."""

_DIGITS_TO_ZERO: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_DATE_SHAPE: Final = b"0000-00-00"
_TIMESTAMP_SHAPES: Final = frozenset(
    b"0000-00-00 00:00:00" + fraction
    for fraction in (b"", *(b"." + b"0" * digits for digits in range(1, 7)))
)
_DAY_FORM: Final = rb"(?P<year>\d{4,7})-(?P<month>\d\d)-(?P<day>\d\d)"
_CLOCK_FORM: Final = rb"(?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,6}))?"
_BC_FORM: Final = rb"(?P<bc> BC)?"
_DATE: Final = re.compile(_DAY_FORM + _BC_FORM)
_TIME: Final = re.compile(_CLOCK_FORM)
_TIMETZ: Final = re.compile(_CLOCK_FORM + rb"(?P<offset>[+-]\d\d(?::\d\d(?::\d\d)?)?)")
_TIMESTAMP: Final = re.compile(_DAY_FORM + b" (?!24)" + _CLOCK_FORM + _BC_FORM)
_TIMESTAMPTZ: Final = re.compile(_DAY_FORM + b" (?!24)" + _CLOCK_FORM + rb"\+00" + _BC_FORM)
_INTERVAL: Final = re.compile(
    rb"P(?!\Z)(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?"
    rb"(?:T(?!\Z)(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d{1,6})?)S)?)?"
)


def _debezium(type_: Type, name: str) -> Schema:
    return named(type_, f"io.debezium.time.{name}")


def _connect(type_: Type, name: str) -> Schema:
    return named(type_, f"org.apache.kafka.connect.data.{name}")


def _or_infinity(infinity: Mapping[bytes, Any], decode: Decode) -> Decode:
    return lambda value: infinity[value] if value in infinity else decode(value)


def of_date(_column: Column, modes: ValueModes) -> Codec:
    """Return the codec of days since 1970-01-01, or of ISO 8601 with a Z."""
    if modes.time_precision == "isostring":
        infinity = _WORDS if modes.lossless else _DEBEZIUM_ISO_DATES
        return Codec(_or_infinity(infinity, _iso_date), _debezium(Type.STRING, "IsoDate"))
    of_connect = modes.time_precision == "connect"
    schema = _connect(Type.INT32, "Date") if of_connect else _debezium(Type.INT32, "Date")
    infinity = _DAYS if modes.lossless else _DEBEZIUM_DAYS
    return Codec(_or_infinity(infinity, _epoch_days), schema, ValueKind.DATE)


def of_time(column: Column, modes: ValueModes) -> Codec:
    """Return the codec of time since midnight, up to 24:00:00: ms, µs, ns, or ISO 8601 with Z."""
    us = _time_us
    if column.array and not modes.lossless:
        us = _time_us_of_ms  # Debezium reads arrays through java.sql.Time
    match modes.time_precision:
        case "isostring":
            schema = _debezium(Type.STRING, "IsoTime")
            if modes.lossless:
                return Codec(lambda value: _iso_time(us(value)), schema)
            return Codec(lambda value: _iso_time(us(value) % _DAY_US), schema)
        case "connect":
            return Codec(lambda value: us(value) // 1_000, _connect(Type.INT32, "Time"))
        case "nanoseconds":
            return Codec(lambda value: us(value) * 1_000, _debezium(Type.INT64, "NanoTime"))
        case "native" | "adaptive" if column.time_precision <= 3:
            return Codec(lambda value: _whole_ms(_time_us(value)), _debezium(Type.INT32, "Time"))
        case _:
            return Codec(us, _debezium(Type.INT64, "MicroTime"))


def of_timetz(column: Column, modes: ValueModes) -> Codec:
    """Return the codec of ISO 8601 with its own offset, or in UTC."""
    schema = _debezium(Type.STRING, "ZonedTime")
    if modes.lossless:
        return Codec(_zoned_time, schema)
    unit = 1_000_000 if column.array else 1  # java.sql.Time again, which has only seconds
    return Codec(lambda value: _iso_time(_time_in_utc(value)[1] // unit * unit), schema)


def of_timestamp(column: Column, modes: ValueModes) -> Codec:
    """Return the codec of time since 1970-01-01 in ms, µs or ns, or ISO 8601 with a Z."""
    lossless = modes.lossless
    decode: Decode
    match modes.time_precision:
        case "isostring":
            infinity = _WORDS if lossless else _DEBEZIUM_ISO_TIMESTAMPS
            schema = _debezium(Type.STRING, "IsoTimestamp")
            return Codec(_or_infinity(infinity, _iso_timestamp), schema)
        case "connect":
            return Codec(_floor_ms, _connect(Type.INT64, "Timestamp"), ValueKind.TIMESTAMP_MS)
        case "nanoseconds":
            decode = _timestamp_ns if lossless else _timestamp_ns_or_null
            return Codec(_or_infinity(_INT64, decode), _debezium(Type.INT64, "NanoTimestamp"))
        case "native" | "adaptive" | "adaptive_time_microseconds" if column.time_precision <= 3:
            decode = _or_infinity(_TIMESTAMPS, _timestamp_ms) if lossless else _floor_ms
            return Codec(decode, _debezium(Type.INT64, "Timestamp"), ValueKind.TIMESTAMP_MS)
        case _:
            decode = _or_infinity(_TIMESTAMPS, _timestamp_us if lossless else _overflowing_us)
            return Codec(decode, _debezium(Type.INT64, "MicroTimestamp"), ValueKind.TIMESTAMP_US)


def of_timestamptz(column: Column, _modes: ValueModes) -> Codec:
    """Return the codec of ISO 8601 in UTC, with infinity unchanged, in every mode."""
    digits = column.time_precision
    decode = _or_infinity(_WORDS, partial(_zoned_timestamp, digits))
    return Codec(decode, _debezium(Type.STRING, "ZonedTimestamp"), ValueKind.TIMESTAMPTZ, digits)


def of_interval(_column: Column, modes: ValueModes) -> Codec:
    """Return the codec of PostgreSQL's ISO 8601 text, Debezium's, or µs with average months."""
    if modes.interval == "numeric":
        decode: Decode = _exact_us if modes.lossless else _us_of_doubles
        return Codec(_or_infinity(_INT64, decode), _debezium(Type.INT64, "MicroDuration"))
    decode = _checked_interval if modes.interval == "text" else _all_units
    return Codec(_or_infinity(_WORDS, decode), _debezium(Type.STRING, "Interval"))


def _matched(form: re.Pattern[bytes], value: bytes) -> re.Match[bytes]:
    match = form.fullmatch(value)
    if match is None:
        raise ValueError("not a date or time of its type")
    return match


def _year(match: re.Match[bytes]) -> int:
    """Return the astronomical year."""
    year = int(match["year"])
    if year == 0:
        raise ValueError("there is no year 0")
    return 1 - year if match["bc"] else year


def _day(match: re.Match[bytes]) -> int:
    """Return the days since 1970-01-01, for any year."""
    cycle, year = divmod(_year(match), 400)
    in_cycle_5 = date(2_000 + year, int(match["month"]), int(match["day"])).toordinal()
    return in_cycle_5 + (cycle - 5) * _DAYS_OF_CYCLE - _EPOCH_DAY


def _iso_day(match: re.Match[bytes]) -> str:
    """Return ISO 8601: ``2024-02-29``, ``-0043-03-15``, ``+10000-01-01``."""
    _day(match)  # raises for an invalid day
    year = _year(match)
    sign = "-" if year < 0 else "+" if year > 9_999 else ""
    return f"{sign}{abs(year):04}-{match['month'].decode()}-{match['day'].decode()}"


def _us_of_day(match: re.Match[bytes]) -> int:
    """Return µs since midnight, up to 24:00:00."""
    hour, minute, second = map(int, match["clock"].split(b":"))
    microsecond = int((match["fraction"] or b"").ljust(6, b"0"))
    us = (hour * 3_600 + minute * 60 + second) * 1_000_000 + microsecond
    if minute > 59 or second > 59 or us > _DAY_US:
        raise ValueError("no such time of day")
    return us


def _epoch_days(value: bytes) -> int:
    if value.translate(_DIGITS_TO_ZERO) == _DATE_SHAPE:
        return date.fromisoformat(value.decode()).toordinal() - _EPOCH_DAY
    return _day(_matched(_DATE, value))


def _iso_date(value: bytes) -> str:
    return _iso_day(_matched(_DATE, value)) + "Z"


def _timestamp_us(value: bytes) -> int:
    """Return µs. PostgreSQL's range ends 30 years after that of 64 bits, so a few are larger."""
    if value.translate(_DIGITS_TO_ZERO) in _TIMESTAMP_SHAPES:
        since = datetime.fromisoformat(value.decode()) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    match = _matched(_TIMESTAMP, value)
    return _day(match) * _DAY_US + _us_of_day(match)


def _timestamp_ms(value: bytes) -> int:
    return _whole_ms(_timestamp_us(value))


def _floor_ms(value: bytes) -> int:
    us: int = _TIMESTAMPS[value] if value in _TIMESTAMPS else _timestamp_us(value)
    return us // 1_000


def _timestamp_ns(value: bytes) -> int:
    return _timestamp_us(value) * 1_000


def _timestamp_ns_or_null(value: bytes) -> int | None:
    ns = _timestamp_ns(value)
    return ns if _INT64_MIN <= ns <= _INT64_MAX else None


def _overflowing_us(value: bytes) -> int:
    """Overflow as in Java: the seconds saturate at 64 bits, then the rest overflows."""
    seconds, fraction = divmod(_timestamp_us(value), 1_000_000)
    wrapped = min(max(seconds * 1_000_000, _INT64_MIN), _INT64_MAX) + fraction
    return wrapped if wrapped <= _INT64_MAX else wrapped - 2**64


def _whole_ms(us: int) -> int:
    """Return milliseconds of a value declared with at most 3 digits."""
    ms, rest = divmod(us, 1_000)
    if rest:
        raise ValueError("more fractional digits than declared")
    return ms


def _zoned_timestamp(digits: int, value: bytes) -> str:
    """Return ISO 8601 in UTC with the declared number of fractional digits, as in Debezium."""
    if value[-3:] == b"+00" and value[:-3].translate(_DIGITS_TO_ZERO) in _TIMESTAMP_SHAPES:
        text = value[:-3].decode()
        datetime.fromisoformat(text)
        return f"{text[:10]}T{_padded(text[11:19], text[20:], digits)}Z"
    return _iso(_matched(_TIMESTAMPTZ, value), digits)


def _iso_timestamp(value: bytes) -> str:
    """Return a timestamp without time zone as if it were UTC, with all of its digits."""
    return _iso(_matched(_TIMESTAMP, value), 0)


def _iso(match: re.Match[bytes], digits: int) -> str:
    _us_of_day(match)  # raises for an invalid time of day
    fraction = (match["fraction"] or b"").decode()
    return f"{_iso_day(match)}T{_padded(match['clock'].decode(), fraction, digits)}Z"


def _padded(clock: str, fraction: str, digits: int) -> str:
    return f"{clock}.{fraction.ljust(digits, '0')}" if digits or fraction else clock


def _time_us(value: bytes) -> int:
    return _us_of_day(_matched(_TIME, value))


def _time_us_of_ms(value: bytes) -> int:
    return _time_us(value) // 1_000 * 1_000


def _iso_time(us: int) -> str:
    """Convert µs since midnight to ISO 8601 with the necessary fractional digits."""
    seconds, fraction = divmod(us, 1_000_000)
    clock = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return (f"{clock}.{fraction:06}".rstrip("0") if fraction else clock) + "Z"


def _zoned_time(value: bytes) -> str:
    """Return ISO 8601 time of day with its own offset: ``13:14:15.5+02:00``, ``Z`` for UTC."""
    match, _ = _time_in_utc(value)
    offset = match["offset"].decode()
    clock = value[: match.start("offset")].decode()
    if offset == "+00":
        return clock + "Z"
    return f"{clock}{offset}:00" if len(offset) == 3 else clock + offset


def _time_in_utc(value: bytes) -> tuple[re.Match[bytes], int]:
    """Return a time of day with an offset, and µs since midnight in UTC. 24:00:00 is 0:00."""
    match = _matched(_TIMETZ, value)
    offset = match["offset"]
    hours, minutes, seconds, *_ = *map(int, offset[1:].split(b":")), 0, 0
    if minutes > 59 or seconds > 59 or hours > 15:
        raise ValueError("not an offset")
    offset_us = (hours * 3_600 + minutes * 60 + seconds) * 1_000_000
    us = _us_of_day(match)
    return match, (us + offset_us if offset[:1] == b"-" else us - offset_us) % _DAY_US


def _units(value: bytes) -> tuple[list[int], str]:
    """Return years, months, days, hours and minutes, and the seconds as text."""
    match = _matched(_INTERVAL, value)
    return [int(match[group] or 0) for group in range(1, 6)], (match[6] or b"0").decode()


def _checked_interval(value: bytes) -> str:
    _units(value)
    return value.decode()


def _all_units(value: bytes) -> str:
    (years, months, days, hours, minutes), seconds = _units(value)
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{seconds}S"


def _exact_us(value: bytes) -> int:
    (years, months, days, hours, minutes), seconds = _units(value)
    whole, _, fraction = seconds.partition(".")
    second_us = int(whole + fraction.ljust(6, "0"))
    months_us = (years * 12 + months) * _MONTH_US
    return months_us + days * _DAY_US + (hours * 60 + minutes) * 60_000_000 + second_us


def _us_of_doubles(value: bytes) -> int:
    """Convert as Debezium: in doubles, limited to the range of 64 bits."""
    (years, months, days, hours, minutes), seconds = _units(value)
    all_days = (years * 12 + months) * _DAYS_PER_MONTH + days
    all_seconds = (((all_days * 24 + hours) * 60) + minutes) * 60 + float(seconds)
    return min(max(int(all_seconds * 1e6), _INT64_MIN), _INT64_MAX)
