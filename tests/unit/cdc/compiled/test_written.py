"""Records handed to the client, and the notes about them: as in the model."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.compiled import fast
from cdc.records.position import HEADER
from cdc.records.record import Record, RecordOrBatch
from tests.fixtures import stream_model

RECORDS: list[RecordOrBatch] = [
    Record("t", b'{"id":1}', b"value", [(HEADER, b"1/1")]),
    Record("t", b'{"id":1}', None, [("other", b"x"), (HEADER, b"2/1")]),
    Record("t", None, b"no key", [], 2),
]
TEXTS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"ab"]))
MADE = st.builds(
    Record,
    st.sampled_from("tu"),
    TEXTS,
    TEXTS,
    st.lists(st.tuples(st.sampled_from(["x", HEADER]), st.sampled_from([b"1/1", b"2/1"]))),
    st.one_of(st.none(), st.integers(0, 3)),
    st.integers(0, 9),
)


def test_a_record_is_known_again_by_what_a_report_says_of_it() -> None:
    written = fast.WrittenRecords()
    for record in RECORDS:
        assert isinstance(record, Record)
        written.add(record)
    assert (len(written), written.size) == (3, 8 + 5 + 8 + 6)
    assert written.position("t", b'{"id":1}', 13) == b"1/1"
    assert written.position("t", b'{"id":1}', 8) == b"2/1"
    assert written.position("t", None, 6) == b""
    assert written.position("u", b'{"id":1}', 13) == b""
    written.clear()
    assert (len(written), written.size) == (0, 0)


def test_a_full_queue_ends_a_part_and_an_error_says_how_far_it_came() -> None:
    written = fast.WrittenRecords()
    room = 2
    sent: list[object] = []

    def send(*arguments: object) -> None:
        if len(sent) == room:
            raise BufferError
        if arguments[2] is None:
            raise KeyError
        sent.append(arguments)

    assert fast.produce(send, RECORDS[:2] * 2, 0, 4, written) == 2
    assert sent[0] == ("t", b"value", b'{"id":1}', -1, None, None, 0, [(HEADER, b"1/1")])
    room = 5
    with pytest.raises(KeyError):
        fast.produce(send, RECORDS, 0, 3, written)
    assert len(written) == 4


class Client:
    """Takes records until its queue is full; refuses those without key and value."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.sent: list[tuple[object, ...]] = []

    def send(self, *arguments: object) -> None:
        if len(self.sent) == self._room:
            raise BufferError
        if arguments[1:3] == (None, None):
            raise KeyError
        self.sent.append(arguments)


@given(st.lists(MADE, max_size=6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_records_are_handed_over_as_the_model_does_it(
    records: list[Record], room: int, start: int, size: int
) -> None:
    start = min(start, len(records))
    stop = min(start + size, len(records))
    outcomes = []
    for written, produce in (
        (fast.WrittenRecords(), fast.produce),
        (stream_model.ModelWritten(), stream_model.produce),
    ):
        client, end = Client(room), None
        notes: Any = written
        try:
            end = produce(client.send, [*records], start, stop, notes)
        except KeyError:
            end = None
        positions = [
            notes.position(made.topic, made.key, len(made.key or b"") + len(made.value or b""))
            for made in records
        ]
        noted = len(notes), notes.size, notes.culprit, notes.span(), positions
        outcomes.append((client.sent, end, noted))
    assert outcomes[0] == outcomes[1]
