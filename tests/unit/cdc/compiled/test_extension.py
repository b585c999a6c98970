"""With a compiler or without: the same names, the same notes, and a word about it."""

import subprocess
import sys
from typing import Any

import pytest

from cdc.compiled.extension import fast
from cdc.kafka.written import PureWrittenRecords, pure_produce
from cdc.records.position import HEADER
from cdc.records.record import Record, RecordOrBatch

RECORDS: list[RecordOrBatch] = [
    Record("t", b'{"id":1}', b"value", [(HEADER, b"1/1")]),
    Record("t", b'{"id":1}', None, [("other", b"x"), (HEADER, b"2/1")]),
    Record("t", None, b"no key", [], 2),
]
WITHOUT = """
import sys
sys.modules["cdc.compiled.fast"] = None
from cdc.kafka.written import PureWrittenRecords, WrittenRecords
from cdc.stream.translation import Translation
from cdc.compiled.extension import IMPLEMENTATION, warn_if_pure
assert WrittenRecords is PureWrittenRecords
warn_if_pure()
print(IMPLEMENTATION)
"""


def test_all_goes_on_without_the_compiled_part_and_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True
    )
    assert "pure Python" in done.stdout.splitlines()[-1]
    assert "no C compiler" in done.stdout


@pytest.mark.parametrize("compiled", [False, True])
def test_a_record_is_known_again_by_what_a_report_says_of_it(compiled: bool) -> None:
    if compiled and fast is None:
        pytest.skip("there was no C compiler when Millrace was installed")
    written: Any = fast.WrittenRecords() if compiled else PureWrittenRecords()
    for record in RECORDS:
        written.add(record)
    assert (len(written), written.size) == (3, 8 + 5 + 8 + 6)
    assert written.position("t", b'{"id":1}', 13) == b"1/1"
    assert written.position("t", b'{"id":1}', 8) == b"2/1"
    assert written.position("t", None, 6) == b""
    assert written.position("u", b'{"id":1}', 13) == b""
    written.clear()
    assert (len(written), written.size) == (0, 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_full_queue_ends_a_part_and_an_error_says_how_far_it_came(compiled: bool) -> None:
    if compiled and fast is None:
        pytest.skip("there was no C compiler when Millrace was installed")
    written: Any = fast.WrittenRecords() if compiled else PureWrittenRecords()
    produce = fast.produce if compiled else pure_produce
    room = 2
    sent: list[object] = []

    def send(*arguments: object) -> None:
        if len(sent) == room:
            raise BufferError
        if arguments[2] is None:
            raise KeyError
        sent.append(arguments)

    assert produce(send, RECORDS[:2] * 2, 0, 4, written) == 2
    assert sent[0] == ("t", b"value", b'{"id":1}', -1, None, None, 0, [(HEADER, b"1/1")])
    room = 5
    with pytest.raises(KeyError):
        produce(send, RECORDS, 0, 3, written)
    assert len(written) == 4
