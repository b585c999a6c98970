"""Debezium's ``*.handling.mode`` keys of [capture] → ValueModes."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cdc.settings.kinds import Section
from cdc.settings.modes import PLACEHOLDER, ValueModes


def _placeholder(value: object) -> object:
    """Debezium's forms: the text itself, or ``hex:`` and its bytes."""
    if not isinstance(value, str):
        return value
    if not value.startswith("hex:"):
        return value.encode()
    try:
        return bytes.fromhex(value.removeprefix("hex:"))
    except ValueError:
        raise ValueError("after hex: come pairs of hexadecimal digits") from None


class ValueSettings(Section):
    """How values are written."""

    lossless: bool = True
    decimal_handling_mode: Literal["text", "precise", "double", "string"] = Field(
        "text", alias="decimal.handling.mode"
    )
    time_precision_mode: Literal[
        "native",
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    ] = Field("native", alias="time.precision.mode")
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        "bytes", alias="binary.handling.mode"
    )
    interval_handling_mode: Literal["numeric", "string", "text"] = Field(
        "text", alias="interval.handling.mode"
    )
    hstore_handling_mode: Literal["json", "map", "text"] = Field(
        "text", alias="hstore.handling.mode"
    )
    include_unknown_datatypes: bool = Field(True, alias="include.unknown.datatypes")
    unavailable_value_placeholder: Annotated[bytes, BeforeValidator(_placeholder)] = Field(
        PLACEHOLDER, alias="unavailable.value.placeholder"
    )

    @property
    def value_modes(self) -> ValueModes:
        """The same, for the codec."""
        return ValueModes(
            decimal=self.decimal_handling_mode,
            time_precision=self.time_precision_mode,
            binary=self.binary_handling_mode,
            interval=self.interval_handling_mode,
            hstore=self.hstore_handling_mode,
            include_unknown=self.include_unknown_datatypes,
            placeholder=self.unavailable_value_placeholder,
            lossless=self.lossless,
        )
