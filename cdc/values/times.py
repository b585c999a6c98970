"""Codecs of dates, times, timestamps and intervals, by time.precision and interval.handling.mode.

What PostgreSQL's text means is temporal.py's; here it gets the unit and the name of a mode. Where
Debezium's numbers overflow, ``lossless`` has the exact one, larger than 64 bits hold.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values import temporal
from cdc.values.blocks import Codec, ValueKind, named

_INT64 = (-(2**63), 2**63 - 1)
_DAY_US: Final = 86_400_000_000
_DAYS_PER_MONTH: Final = 365.25 / 12
_MONTH_US: Final = 2_629_800_000_000
"""30.4375 days: Debezium's average month."""
_DATE_INFINITY_IN_DEBEZIUM = {
    b"infinity": (-2_147_472_692, "-5877611-06-21"),
    b"-infinity": (-2_147_472_691, "-5877611-06-22"),
}
"""What its stream has for them; its snapshot has four other values."""
_TIMESTAMP_INFINITY_IN_DEBEZIUM = {
    "infinity": "+294247-01-10T04:00:25.2Z",
    "-infinity": "-290308-12-21T19:59:27.6Z",
}
_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d{1,6})?)S)?)?"
)


def _debezium(type_: Type, name: str) -> Schema:
    return named(type_, f"io.debezium.time.{name}")


def _connect(type_: Type, name: str) -> Schema:
    return named(type_, f"org.apache.kafka.connect.data.{name}")


def of_date(_column: Column, modes: ValueModes) -> Codec:
    """Days since 1970-01-01, or ISO 8601 with a Z."""
    if modes.time_precision == "isostring":
        schema = _debezium(Type.STRING, "IsoDate")
        return Codec(_iso_date if modes.lossless else _iso_date_in_debezium, schema)
    of_connect = modes.time_precision == "connect"
    schema = _connect(Type.INT32, "Date") if of_connect else _debezium(Type.INT32, "Date")
    inner = temporal.epoch_days if modes.lossless else _epoch_days_in_debezium
    return Codec(inner, schema, ValueKind.DATE)


def _iso_date(value: bytes) -> str:
    iso = temporal.iso_date(value)
    return iso if iso.endswith("y") else iso + "Z"


def _iso_date_in_debezium(value: bytes) -> str:
    if value in _DATE_INFINITY_IN_DEBEZIUM:
        return _DATE_INFINITY_IN_DEBEZIUM[value][1] + "Z"
    return temporal.iso_date(value) + "Z"


def _epoch_days_in_debezium(value: bytes) -> int:
    if value in _DATE_INFINITY_IN_DEBEZIUM:
        return _DATE_INFINITY_IN_DEBEZIUM[value][0]
    return temporal.epoch_days(value)


def of_time(column: Column, modes: ValueModes) -> Codec:
    """Time since midnight in ms, µs or ns, or ISO 8601 with a Z; up to 24:00:00."""
    time_us = temporal.time_us
    if column.array and not modes.lossless:
        time_us = _whole_ms  # Debezium reads arrays through java.sql.Time
    match modes.time_precision:
        case "isostring":
            schema = _debezium(Type.STRING, "IsoTime")
            if modes.lossless:
                return Codec(lambda value: temporal.iso_time(time_us(value)) + "Z", schema)
            return Codec(lambda value: temporal.iso_time(time_us(value) % _DAY_US) + "Z", schema)
        case "connect":
            return Codec(lambda value: time_us(value) // 1_000, _connect(Type.INT32, "Time"))
        case "nanoseconds":
            return Codec(lambda value: time_us(value) * 1_000, _debezium(Type.INT64, "NanoTime"))
        case "native" | "adaptive" if column.time_precision <= 3:
            return Codec(temporal.time_ms, _debezium(Type.INT32, "Time"))
        case _:
            return Codec(time_us, _debezium(Type.INT64, "MicroTime"))


def _whole_ms(value: bytes) -> int:
    return temporal.time_us(value) // 1_000 * 1_000


def of_timetz(column: Column, modes: ValueModes) -> Codec:
    """ISO 8601 with its own offset, else in UTC."""
    schema = _debezium(Type.STRING, "ZonedTime")
    if modes.lossless:
        return Codec(temporal.zoned_time, schema)
    unit = 1_000_000 if column.array else 1  # java.sql.Time again, which says only seconds

    def at_utc(value: bytes) -> str:
        return temporal.iso_time(temporal.utc_time_us(value) // unit * unit) + "Z"

    return Codec(at_utc, schema)


def of_timestamp(column: Column, modes: ValueModes) -> Codec:
    """Time since 1970-01-01 in ms, µs or ns, or ISO 8601 with a Z."""
    match modes.time_precision:
        case "isostring":
            schema = _debezium(Type.STRING, "IsoTimestamp")
            return Codec(temporal.iso_timestamp if modes.lossless else _iso_in_debezium, schema)
        case "connect":
            return Codec(_floor_ms, _connect(Type.INT64, "Timestamp"), ValueKind.TIMESTAMP_MS)
        case "nanoseconds":
            return _of_nanoseconds(modes)
        case "native" | "adaptive" | "adaptive_time_microseconds" if column.time_precision <= 3:
            inner = temporal.timestamp_ms if modes.lossless else _floor_ms
            schema = _debezium(Type.INT64, "Timestamp")
            kind = ValueKind.TIMESTAMP_MS
        case _:
            inner = temporal.timestamp_us if modes.lossless else _us_in_debezium
            schema = _debezium(Type.INT64, "MicroTimestamp")
            kind = ValueKind.TIMESTAMP_US
    return Codec(inner, schema, kind)


def _iso_in_debezium(value: bytes) -> str:
    iso = temporal.iso_timestamp(value)
    return _TIMESTAMP_INFINITY_IN_DEBEZIUM.get(iso, iso)


def _floor_ms(value: bytes) -> int:
    return temporal.timestamp_us(value) // 1_000


def _us_in_debezium(value: bytes) -> int:
    """As Java's: the seconds saturate at 64 bits, then what is left overflows."""
    us = temporal.timestamp_us(value)
    if us in temporal.TIMESTAMP_INFINITY:
        return us
    seconds, fraction = divmod(us, 1_000_000)
    least, most = _INT64
    wrapped = min(max(seconds * 1_000_000, least), most) + fraction
    return wrapped if wrapped <= most else wrapped - 2**64


def _of_nanoseconds(modes: ValueModes) -> Codec:
    def nanoseconds(value: bytes) -> int | None:
        us = temporal.timestamp_us(value)
        if us in temporal.TIMESTAMP_INFINITY:
            return _INT64[us > 0]
        outside = not _INT64[0] <= us * 1_000 <= _INT64[1]
        return None if outside and not modes.lossless else us * 1_000

    return Codec(nanoseconds, _debezium(Type.INT64, "NanoTimestamp"))


def of_timestamptz(column: Column, _modes: ValueModes) -> Codec:
    """ISO 8601 in UTC, infinity as it is, in every mode."""
    digits = column.time_precision
    schema = _debezium(Type.STRING, "ZonedTimestamp")
    return Codec(partial(temporal.zoned_timestamp, digits), schema, ValueKind.TIMESTAMPTZ, digits)


def of_interval(_column: Column, modes: ValueModes) -> Codec:
    """PostgreSQL's ISO 8601 text, Debezium's, or µs with average months."""
    if modes.interval == "numeric":
        inner = _exact_us if modes.lossless else _us_of_doubles
        return Codec(inner, _debezium(Type.INT64, "MicroDuration"))
    text: Callable[[bytes], str] = _checked_interval if modes.interval == "text" else _all_units
    return Codec(text, _debezium(Type.STRING, "Interval"))


def _units(value: bytes) -> tuple[list[int], str]:
    """Years, months, days, hours and minutes; and the seconds as text."""
    match = _INTERVAL.fullmatch(value.decode())
    if match is None or value[-1:] in b"PT":
        raise ValueError("not an interval")
    return [int(match[group] or 0) for group in range(1, 6)], match[6] or "0"


def _checked_interval(value: bytes) -> str:
    if value not in {b"infinity", b"-infinity"}:
        _units(value)
    return value.decode()


def _all_units(value: bytes) -> str:
    if value in {b"infinity", b"-infinity"}:
        return value.decode()
    (years, months, days, hours, minutes), seconds = _units(value)
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{seconds}S"


def _exact_us(value: bytes) -> int:
    if value in {b"infinity", b"-infinity"}:
        return _INT64[value[:1] != b"-"]
    (years, months, days, hours, minutes), seconds = _units(value)
    whole, _, fraction = seconds.partition(".")
    second_us = int(whole + fraction.ljust(6, "0"))
    months_us = (years * 12 + months) * _MONTH_US
    return months_us + days * _DAY_US + (hours * 60 + minutes) * 60_000_000 + second_us


def _us_of_doubles(value: bytes) -> int:
    """As Debezium: in doubles, and where 64 bits end the last number that they hold."""
    least, most = _INT64
    if value in {b"infinity", b"-infinity"}:
        return _INT64[value[:1] != b"-"]
    (years, months, days, hours, minutes), seconds = _units(value)
    all_days = (years * 12 + months) * _DAYS_PER_MONTH + days
    all_seconds = (((all_days * 24 + hours) * 60) + minutes) * 60 + float(seconds)
    return min(max(int(all_seconds * 1e6), least), most)
