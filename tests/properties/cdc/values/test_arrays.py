"""Arrays without escapes, read at once → the same elements as read byte by byte."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.values.lists import _nested, elements

TEXTS = st.text(st.sampled_from('ab N,;{}"\\\n'), max_size=4) | st.just("NULL")


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@given(st.lists(st.none() | TEXTS), st.sampled_from([",", ";"]))
def test_elements_come_back(texts: list[str | None], delimiter: str) -> None:
    array = delimiter.join("NULL" if text is None else quoted(text) for text in texts)
    value = f"{{{array}}}".encode()
    assert elements(value, bytes.decode, delimiter.encode()) == texts


@given(st.text(st.sampled_from('ab N{}",;\\U'), max_size=12).map(lambda text: f"{{{text}}}"))
@example('{"a b",NULL,"NULL",""}')
@example('{"a"b}')
@example('{a,"b",}')
def test_any_text_is_read_as_byte_by_byte(text: str) -> None:
    value = text.encode()
    try:
        expected = _nested(value, bytes.decode, b",")
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            elements(value, bytes.decode)
    else:
        assert elements(value, bytes.decode) == expected
