"""Positions and LSNs: their text sorts like their values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.records.position import Lsn, Position, header
from tests.fixtures.position_headers import parse_filled, parse_header

lsns = st.integers(0, 2**64 - 1).map(Lsn)
positions = st.builds(Position, st.integers(1, 2**32 - 1), lsns, st.integers(0, 2**64 - 1))


@given(lsns)
def test_an_lsn_reads_back_from_postgresqls_text(lsn: Lsn) -> None:
    assert Lsn.parse(str(lsn)) == lsn


def test_an_lsn_is_written_as_postgresql_writes_it() -> None:
    assert str(Lsn(0x16B374D848)) == "16/B374D848"
    assert str(Lsn(0)) == "0/0"


@pytest.mark.parametrize("text", ["", "1", "1/", "/1", "g/0", "1/123456789", "1/2/3", " 1/2"])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="isn't an LSN"):
        Lsn.parse(text)


@given(positions, positions)
def test_a_positions_text_sorts_as_the_position(one: Position, other: Position) -> None:
    assert (str(one) < str(other)) == (one < other)
    assert Position.parse(str(one)) == one


@given(positions, st.integers(1, 2**31))
def test_a_header_reads_back_also_with_fields_of_a_later_format(
    position: Position, version: int
) -> None:
    assert parse_header(header(position, version)) == (position, version)
    assert parse_header(header(position, version) + b"/later") == (position, version)
    assert parse_filled(header(position, version)) == ()
    filled = header(position, version, (0, 7, 12))
    assert filled == header(position, version) + b"/1,8,13"
    assert (parse_header(filled), parse_filled(filled + b"/x")) == ((position, version), (0, 7, 12))
