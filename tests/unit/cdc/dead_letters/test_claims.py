"""Records that are too large → the choice of `oversized.record`, and claims removed in time."""

import json

import pytest

from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.dead_letters.claims import Claims
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder, Oversized, Refusals
from cdc.errors import CorruptMessageError, RecordRefusedError
from cdc.kafka.topics import TopicLimits
from cdc.records.dead_letters import CLAIM_HEADER, Claim
from cdc.records.record import Record
from cdc.records.topics import claim_topic, dead_letter_topic
from tests.fixtures.made_changes import LOG, LSN, NATIVE, POSITION, TRANSACTION, row, table

ID_V = table("id text!, v text, w text")
DEAD_LETTERS, CLAIMS = dead_letter_topic(LOG.prefix), claim_topic(LOG.prefix)
LIMITS = {
    ID_V.topic: TopicLimits(3_000, keyless=False),
    DEAD_LETTERS: TopicLimits(1_000, keyless=False),
    CLAIMS: TopicLimits(1_000, keyless=False),
}
LARGE = row("1", "é" * 2_000, "small")


def encoder(
    claims: Claims | None, limits: dict[str, TopicLimits], aside: str = ""
) -> GuardedEncoder:
    policy: Oversized = claims or "dead_letter"
    dead_letters = DeadLetters(LOG.prefix, aside.__eq__, limits, Refusals(), oversized=policy)
    assert dead_letters.covers(ID_V)
    made = GuardedEncoder(dead_letters, ID_V, NATIVE, LOG, PLAIN)
    made.begin(TRANSACTION)
    return made


def topics(records: list[Record]) -> set[str]:
    return {record.topic for record in records}


def test_only_what_is_too_large_is_set_aside_in_tables_that_nobody_names() -> None:
    made = encoder(None, LIMITS)
    assert topics(made.insert(LARGE, LSN, POSITION)) == {DEAD_LETTERS}
    with pytest.raises(CorruptMessageError):
        made.insert(row("1", "x"), LSN, POSITION)


def test_tables_whose_broken_records_are_set_aside_have_no_claims() -> None:
    made = encoder(Claims(LOG.prefix, LIMITS), LIMITS, aside=str(ID_V.name))
    assert topics(made.insert(LARGE, LSN, POSITION)) == {DEAD_LETTERS}


def test_a_claim_goes_when_another_record_takes_its_records_place() -> None:
    claims = Claims(LOG.prefix, LIMITS)
    made = encoder(claims, LIMITS)
    first = made.insert(LARGE, LSN, POSITION)
    *_, head, record = first
    claim = Claim.model_validate_json(dict(record.headers)[CLAIM_HEADER])
    event = json.loads(record.value or b"")
    assert event["after"] == {"id": "1", "w": "small"}
    assert (claim.pieces, len(claims.kept(ID_V.topic))) == (len(first) - 2, 1)
    second = made.update(None, False, LARGE, LSN, POSITION)
    gone = {one.key for one in second if one.topic == CLAIMS and one.value is None}
    assert gone == {one.key for one in first[:-1]}
    assert [one.value for one in second if one.key == head.key][-1] is not None
    deleted = made.delete(row("1", None, None), True, LSN, POSITION)
    made.insert(LARGE, LSN, POSITION)
    for last in (deleted, made.truncate(LSN, POSITION)):
        gone = {one.key for one in last if one.topic == CLAIMS}
        assert (head.key in gone, len(gone)) == (True, claim.pieces + 1)
    assert claims.kept(ID_V.topic) == {}


def test_a_retained_topics_claims_go_with_log_keep() -> None:
    limits = LIMITS | {ID_V.topic: TopicLimits(3_000, keyless=True)}
    made = encoder(Claims(LOG.prefix, limits), limits).insert(LARGE, LSN, POSITION)
    own = [record for record in made if record.topic == CLAIMS]
    assert [one.value is None for one in own] == [False] * (len(own) // 2) + [True] * (
        len(own) // 2
    )
    assert [one.key for one in own[: len(own) // 2]] == [one.key for one in own[len(own) // 2 :]]


def test_a_row_that_is_too_large_by_its_key_alone_stops_the_daemon() -> None:
    with pytest.raises(RecordRefusedError, match="even without"):
        encoder(Claims(LOG.prefix, LIMITS), LIMITS).insert(
            row("x" * 4_000, "y", "z"), LSN, POSITION
        )
