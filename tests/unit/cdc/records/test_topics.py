"""Names that Avro allows."""

import pytest

from cdc.records.topics import Adjustment, field_name, schema_name


@pytest.mark.parametrize(
    ("mode", "name", "schema", "field"),
    [
        ("none", "my-shop.ü", "my-shop.ü", "my-shop.ü"),
        ("avro", "my-shop.public.T_1.Key", "my_shop.public.T_1.Key", "my_shop_public_T_1_Key"),
        ("avro", "1st column", "_1st_column", "_1st_column"),
        ("avro", "ü😀", "___", "___"),
        ("avro", "", "", ""),
        ("avro_unicode", "a_b.c", "a_u005fb.c", "a_u005fb_u002ec"),
        ("avro_unicode", "1ü", "_u0031_u00fc", "_u0031_u00fc"),
        ("avro_unicode", "😀", "_ud83d_ude00", "_ud83d_ude00"),
    ],
)
def test_a_name_is_adjusted_as_debezium_does(
    mode: Adjustment, name: str, schema: str, field: str
) -> None:
    assert schema_name(mode)(name) == schema
    assert field_name(mode)(name) == field
