"""A column's text from PostgreSQL → its value in an event, by type: one table for every path.

Stream and snapshot share it. Each type has one codec. It also says how the extension may write the
usual texts, and tests/properties compares both. The texts are those of the pinned session
(TimeZone=UTC, DateStyle=ISO, IntervalStyle=iso_8601, extra_float_digits=1, bytea_output=hex,
lc_monetary=C, client_encoding=UTF8). The default modes lose nothing: values that JSON can't carry
as a number (NaN, numeric) are text, and every type without a line of its own is PostgreSQL's text.
``lossless=False`` writes Debezium's values.

types.py has the table. scalars, decimals, times, structures and lists have its codecs, built of
blocks. placeholders has the replacements of missing values. docs/reference/types.md describes it
for people. https://www.postgresql.org/docs/current/datatype.html
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
