"""Changes that can't become records, or refused records → dead letters that hold them."""

import json

import pytest

from cdc.convert.converters import converters
from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder, Refusals
from cdc.dead_letters.row_bytes import row_of
from cdc.errors import RecordRefusedError, RefusedRecord, RegistryUnreachableError
from cdc.events.changes import ABSENT, Row
from cdc.kafka.topics import TopicLimits
from cdc.records.connect import SourceRecord
from cdc.records.dead_letters import PIECE_BYTES_MAX, DeadLetter, outcome_records
from cdc.records.position import HEADER, header
from cdc.records.record import Record
from cdc.records.topics import dead_letter_topic
from cdc.settings.modes import ColumnModes, ColumnRule, Patterns
from tests.fixtures.made_changes import LOG, LSN, NATIVE, POSITION, TRANSACTION, row, table

ID_V = table("id int4!, v text")
TOPIC = dead_letter_topic(LOG.prefix)
LIMIT = 2_000


def encoder(
    refusals: Refusals | None = None,
    pipeline: RecordPipeline = PLAIN,
    limit: int = LIMIT,
    columns: ColumnModes = ColumnModes(),  # noqa: B008 (immutable)
) -> GuardedEncoder:
    limits = {
        ID_V.topic: TopicLimits(limit, keyless=False),
        TOPIC: TopicLimits(1_000, keyless=False),
    }
    dead_letters = DeadLetters(
        LOG.prefix, "public.t".__eq__, limits, refusals or Refusals(), columns
    )
    assert dead_letters.covers(ID_V)
    assert not dead_letters.covers(table("id int4", name="other"))
    made = GuardedEncoder(dead_letters, ID_V, NATIVE, LOG, pipeline)
    made.begin(TRANSACTION)
    return made


def read(records: list[Record]) -> tuple[DeadLetter, dict[str, bytes]]:
    """The only dead letter in there, and what it holds."""
    own = [record for record in records if record.topic == TOPIC]
    *pieces, head = own
    dead_letter = DeadLetter.model_validate_json(head.value or b"")
    assert (head.partition, len(pieces)) == (0, dead_letter.pieces)
    assert {piece.partition for piece in pieces} <= {1}
    assert all(record.headers == [(HEADER, header(POSITION, 7))] for record in own)
    assert len({record.key for record in own}) == len(own), "compaction would take one"
    return dead_letter, dead_letter.contents(b"".join(piece.value or b"" for piece in pieces))


def rows(contents: dict[str, bytes]) -> dict[str, Row]:
    return {name: row_of(part) for name, part in contents.items() if name != "key"}


def test_what_is_all_right_is_left_alone() -> None:
    plain = Encoder(ID_V, NATIVE, LOG, PLAIN)
    plain.begin(TRANSACTION)
    made, expected = (
        [(r.topic, r.key, r.headers) for r in one.insert(row("1", "é"), LSN, POSITION)]
        for one in (encoder(), plain)
    )
    assert made == expected


def test_a_text_that_is_not_of_its_type_becomes_a_letter_with_the_bytes_as_they_came() -> None:
    new = (b"one", b"\xff\x00")
    dead_letter, contents = read(encoder().insert(new, LSN, POSITION))
    assert (dead_letter.table, dead_letter.op, dead_letter.topic) == ("public.t", "c", None)
    assert (dead_letter.position, dead_letter.xid, dead_letter.lsn) == (
        POSITION,
        TRANSACTION.xid,
        str(LSN),
    )
    assert dead_letter.error == "CORRUPT_MESSAGE"
    assert "id" in dead_letter.reason + dead_letter.where
    assert rows(contents) == {"after": new}


def test_null_unsent_and_empty_are_told_apart() -> None:
    _, contents = read(encoder().update((b"one", None), True, (b"", ABSENT), LSN, POSITION))
    assert rows(contents) == {"before": (b"one", None), "after": (b"", ABSENT)}


@pytest.mark.parametrize(
    ("columns", "masked"),
    [
        (ColumnModes(exclude=Patterns((r"public\.t\.v",))), ()),
        (ColumnModes(rules=(ColumnRule("mask", Patterns((r"public\.t\..*",)), length=5),)), ("v",)),
    ],
)
def test_what_no_event_shows_is_in_no_letter(columns: ColumnModes, masked: tuple[str]) -> None:
    change = (b"one", b"secret"), False, (b"one", b"secret"), LSN, POSITION
    dead_letter, contents = read(encoder(columns=columns).update(*change))
    assert rows(contents) == {"before": (b"one", ABSENT), "after": (b"one", ABSENT)}
    assert dead_letter.masked == masked


def test_a_row_without_its_key_becomes_one_too() -> None:
    dead_letter, _ = read(encoder().delete((None, b"x"), True, LSN, POSITION))
    assert dead_letter.error == "TABLE_REFUSED"


def test_of_a_change_only_what_is_too_large_is_set_aside() -> None:
    large = row("2", "x" * LIMIT)
    made = encoder().update(row("1", None), True, large, LSN, POSITION)
    assert [(r.key, r.value is None) for r in made if r.topic == ID_V.topic] == [
        (b'{"id":1}', False),
        (b'{"id":1}', True),
    ]
    dead_letter, contents = read(made)
    assert dead_letter.pieces > 1, "its pieces are small enough for their topic"
    assert "2000" in dead_letter.reason
    assert contents["key"] == b'{"id":2}'
    assert rows(contents)["after"] == large


def test_rows_of_a_snapshot_have_letters_as_well() -> None:
    dead_letter, _ = read(encoder().snapshot_row(row("2", "x" * LIMIT), POSITION, LSN, 5))
    assert (dead_letter.op, dead_letter.xid) == ("r", None)


def test_a_record_without_key_isnt_sent_to_a_compacted_topic() -> None:
    def keyless(record: SourceRecord) -> list[SourceRecord]:
        return [record._replace(key=None, key_schema=None)]

    pipeline = RecordPipeline(converters({}), keyless)
    dead_letter, _ = read(encoder(pipeline=pipeline).insert(row("1", "x"), LSN, POSITION))
    assert "without a key" in dead_letter.reason


def test_what_was_refused_before_is_set_aside_in_its_place_only() -> None:
    refusals = Refusals()
    refusals.topics.add(ID_V.topic)
    error = RecordRefusedError("the broker doesn't like it")
    error.refused = RefusedRecord(ID_V.topic, b'{"id":1}', str(POSITION), str(POSITION), 1)
    assert refusals.learn(error)
    made = encoder(refusals)
    dead_letter, _ = read(made.insert(row("1", "x"), LSN, POSITION))
    assert dead_letter.reason == "the broker doesn't like it"
    assert made.insert(row("2", "x"), LSN, POSITION)[0].topic == ID_V.topic
    later = POSITION._replace(index=4)
    assert made.insert(row("1", "x"), LSN, later)[0].topic == ID_V.topic


def test_what_starting_over_mends_is_no_broken_record() -> None:
    def away(_record: SourceRecord) -> list[SourceRecord]:
        raise RegistryUnreachableError("away")

    with pytest.raises(RegistryUnreachableError):
        encoder(pipeline=RecordPipeline(converters({}), away)).insert(row("1", "x"), LSN, POSITION)


def test_of_a_table_that_is_not_listed_a_record_that_was_refused_before_is_an_error() -> None:
    """Transforms send records of many tables to a topic: the record tells which table it is."""
    refusals, limits = Refusals(), {ID_V.topic: TopicLimits(LIMIT, keyless=False)}
    refusals.reasons[str(POSITION), ID_V.topic, b'{"id":1}'] = "the broker doesn't like it"
    dead_letters = DeadLetters(LOG.prefix, lambda _: False, limits, refusals)
    made = GuardedEncoder(dead_letters, ID_V, NATIVE, LOG, PLAIN)
    made.begin(TRANSACTION)
    with pytest.raises(RecordRefusedError, match="doesn't like it"):
        made.insert(row("1", "x"), LSN, POSITION)
    large = row("2", "x" * LIMIT)
    assert made.insert(large, LSN, POSITION)[0].topic == ID_V.topic, "the broker judges it"


def test_the_extension_leaves_large_records_to_the_encoder() -> None:
    compiled = encoder(limit=1 << 20).compiled()
    assert compiled is not None
    assert compiled.bytes_max < 1 << 20


def test_an_outcome_takes_the_letters_place_and_lets_go_of_what_it_held() -> None:
    made = encoder().insert((b"one", b"x"), LSN, POSITION)
    dead_letter, _ = read(made)
    done = outcome_records(LOG.prefix, dead_letter, "discarded", b"", 5)
    assert [record.key for record in done] == [made[-1].key, *(piece.key for piece in made[:-1])]
    assert json.loads(done[0].value or b"")["outcome"] == "discarded"
    assert [record.value for record in done[1:]] == [None] * dead_letter.pieces
    assert PIECE_BYTES_MAX < 1 << 20
