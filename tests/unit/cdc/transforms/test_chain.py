"""The chain of transforms, its routers and its predicates."""

import pytest

from cdc.capture.wiring import pipeline
from cdc.errors import ConfigError
from cdc.records.connect import Field, Header, Schema, SourceRecord, Type
from cdc.settings import Settings
from tests.unit.cdc.transforms.events import INT, TEXT, Table
from tests.unit.cdc.transforms.sections import build

ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
LOGICAL = "io.debezium.transforms.ByLogicalTableRouter"
UNWRAP = "io.debezium.transforms.ExtractNewRecordState"
MATCHES = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
HAS_HEADER = "org.apache.kafka.connect.transforms.predicates.HasHeaderKey"
TOMBSTONE = "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone"
TABLE = Table("sh_1", "id", id=INT, v=TEXT)
CHANGE = TABLE.change("c", None, {"id": 1, "v": "x"})


@pytest.mark.parametrize(
    ("regex", "replacement", "topic"),
    [
        (r"(.*)\.public\.sh_(.*)", "$1.all", "shop.all"),
        (r"(?<db>\w+)\.(?<schema>\w+)\..*", "${schema}-${db}", "public-shop"),
        (r"shop\.(.*)", r"\$1-$1", "$1-public.sh_1"),
        (r"shop\.(.*)_1", "$12", "public.sh2"),
        (r"(x)?shop.*", "<$1>", "<>"),
        (r"shop|shop\.public\.sh_1", "y", "y.public.sh_1"),
        (r"public", "y", "shop.public.sh_1"),
    ],
)
def test_a_topic_is_renamed_by_javas_rules(regex: str, replacement: str, topic: str) -> None:
    chain = build(
        {
            "order": "r",
            "r.type": ROUTER,
            "r.regex": regex,
            "r.replacement": replacement,
        }
    )
    assert chain(CHANGE) == [CHANGE._replace(topic=topic)]


def test_without_transforms_a_record_stays_as_it_is() -> None:
    assert build({})(CHANGE) == [CHANGE]


def test_transforms_run_in_the_order_of_their_list() -> None:
    chain = build(
        {
            "order": "a, b",
            "b.type": ROUTER,
            "b.regex": "one",
            "b.replacement": "two",
            "a.type": ROUTER,
            "a.regex": ".+",
            "a.replacement": "one",
        }
    )
    assert [record.topic for record in chain(CHANGE)] == ["two"]


def test_without_a_list_transforms_and_predicates_come_as_they_are_written() -> None:
    section = {
        "b.type": ROUTER,
        "b.regex": ".+",
        "b.replacement": "one",
        "a.type": ROUTER,
        "a.regex": "one",
        "a.replacement": "two",
        "a.predicate": "p",
        "predicates.p.type": MATCHES,
        "predicates.p.pattern": "one",
    }
    assert [record.topic for record in build(section)(CHANGE)] == ["two"]
    assert [record.topic for record in build({"order": "a,b", **section})(CHANGE)] == ["one"]


def logical(**options: str) -> SourceRecord:
    settings = {name.replace("_", "."): value for name, value in options.items()}
    (record,) = build(
        {
            "order": "l",
            "l.type": LOGICAL,
            "l.topic.regex": "(.*)sh_.*",
            "l.topic.replacement": "$1all",
            **{f"l.{name}": value for name, value in settings.items()},
        }
    )(CHANGE)
    return record


def test_tables_that_share_a_topic_share_its_schemas_names() -> None:
    record = logical()
    assert record.topic == "shop.public.all"
    assert record.key == {"id": 1, "__dbz__physicalTableIdentifier": "shop.public.sh_1"}
    assert record.key_schema == Schema(
        Type.STRUCT,
        name="shop.public.all.Key",
        fields=(Field("id", INT), Field("__dbz__physicalTableIdentifier", Schema(Type.STRING))),
    )
    assert record.value == CHANGE.value
    assert record.value_schema is not None
    assert record.value_schema.name == "shop.public.all.Envelope"
    for image in ("before", "after"):
        row = record.value_schema.of_field(image)
        assert row is not None
        assert (row.name, row.optional) == ("shop.public.all.Value", True)


def test_the_table_in_the_key_can_be_named_or_left_out() -> None:
    named = logical(
        key_field_name="from", key_field_regex=".*_(.)", key_field_replacement="shard $1"
    )
    assert named.key == {"id": 1, "from": "shard 1"}
    assert logical(key_enforce_uniqueness="false").key == {"id": 1}


def test_tombstones_and_keyless_records_are_routed_too() -> None:
    chain = build(
        {
            "order": "l",
            "l.type": "io.debezium.transforms.ToLogicalTopicRouter",
            "l.topic.regex": ".*",
            "l.topic.replacement": "all",
        }
    )
    (tombstone,) = chain(TABLE.tombstone(1))
    assert tombstone.key == {"id": 1, "__dbz__sourceIdentifier": TABLE.topic}
    assert (tombstone.topic, tombstone.value) == ("all", None)
    (truncate,) = chain(TABLE.change("t", None, None))
    assert (truncate.topic, truncate.key) == ("all", None)


@pytest.mark.parametrize(
    ("predicate", "record", "holds"),
    [
        ({"type": MATCHES, "pattern": r".*\.sh_\d"}, CHANGE, True),
        ({"type": MATCHES, "pattern": "sh"}, CHANGE, False),
        ({"type": HAS_HEADER, "name": "h"}, CHANGE._replace(headers=(Header("h", 1, INT),)), True),
        ({"type": HAS_HEADER, "name": "h"}, CHANGE, False),
        ({"type": TOMBSTONE}, TABLE.tombstone(1), True),
        ({"type": TOMBSTONE}, CHANGE, False),
    ],
)
@pytest.mark.parametrize("negate", [False, True])
def test_a_predicate_says_which_records_a_transform_is_for(
    predicate: dict[str, str], record: SourceRecord, holds: bool, negate: bool
) -> None:
    chain = build(
        {
            "order": "r",
            "r.type": ROUTER,
            "r.regex": ".+",
            "r.replacement": "routed",
            "r.predicate": "p",
            "r.negate": str(negate).lower(),
            **{f"predicates.p.{name}": value for name, value in predicate.items()},
        }
    )
    (left,) = chain(record)
    assert (left.topic == "routed") is (holds is not negate)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"order": "r"}, "r"),
        ({"order": "r", "r.type": "nosuch"}, "type must be one of"),
        ({"order": "r", "r.type": ROUTER, "r.replacement": "x"}, "regex is required"),
        ({"order": "r", "r.type": ROUTER, "r.regex": "("}, "regex isn't"),
        ({"order": "r", "r.type": ROUTER, "r.regex": "x", "r.replacement": "$1"}, "group"),
        ({"order": "r", "r.type": ROUTER, "r.regex": "x", "r.replacement": "$x"}, "no group"),
        ({"order": "r", "r.type": ROUTER, "r.regex": "x", "r.replacement": "${n}"}, "group"),
        ({"order": "u", "u.type": UNWRAP, "u.drop.tombstones": "true"}, "drop.tombstones"),
        ({"order": "u", "u.type": UNWRAP, "u.delete.tombstone.handling.mode": "none"},
         "rewrite-with-tombstone"),
        ({"order": "u", "u.type": UNWRAP, "u.add.fields": "a.b.c"}, "add.fields"),
        ({"order": "u", "u.type": UNWRAP, "u.predicate": "p"}, "predicate"),
        ({"order": "u", "u.type": UNWRAP, "u.negate": "maybe"}, "true or false"),
        ({"order": "r", "r.type": ROUTER, "r.regex": "x", "r.replacement": "y", "u.type": UNWRAP},
         "u"),
        ({"predicates.p.type": MATCHES}, "pattern is required"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises((ConfigError, ValueError)) as error:
        build(settings)
    assert words in str(error.value)


def test_a_predicate_that_no_transform_asks_is_refused_all_the_same() -> None:
    settings = Settings(
        source={},
        capture={"topic.prefix": "pre"},
        kafka={"bootstrap.servers": "nowhere"},
        predicates={"odd.type": "no.such.Class"},
    )
    with pytest.raises(ConfigError, match=r"type must be one of .*predicate odd"):
        pipeline(settings, lambda _topic, _cleanup: None)
