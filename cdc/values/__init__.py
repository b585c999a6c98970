"""A column's text from PostgreSQL → its value in an event, per type: one table for every path.

Stream and snapshot share it. Each type has one codec, which says for the usual texts how the
extension may write them, too: held equal by tests/properties. The texts are those of the pinned
session (TimeZone=UTC, DateStyle=ISO, IntervalStyle=iso_8601,
extra_float_digits=1, bytea_output=hex, lc_monetary=C, client_encoding=UTF8). With the default modes
nothing is lost: what JSON can't carry as a number (NaN, numeric) is text, and every type without a
line of its own is PostgreSQL's own text. With ``lossless=False`` it is what Debezium writes.

types.py is the table; scalars, decimals, times, structures and lists hold the codecs that it
names, built of blocks; placeholders has what takes the place of a missing value.
docs/reference/types.md is the same for people.
https://www.postgresql.org/docs/current/datatype.html
"""

from cdc.values.blocks import MALFORMED, Codec, Decode, ValueKind
from cdc.values.placeholders import default, placeholder, zero
from cdc.values.types import codec, malformed

__all__ = [
    "MALFORMED",
    "Codec",
    "Decode",
    "ValueKind",
    "codec",
    "default",
    "malformed",
    "placeholder",
    "zero",
]
