"""Debezium's keys and its preset → their meaning, and the errors after a mistake."""

import pytest

from cdc.errors import ConfigError
from cdc.settings import Settings
from cdc.settings.modes import EventModes, ValueModes
from tests.unit.cdc.settings.test_settings import MINIMAL, Read, read

__all__ = ["read"]


def capture(read: Read, lines: str) -> Settings:
    return read(MINIMAL.replace("[kafka]", f"{lines}\n[kafka]"))


def test_without_a_preset_everything_is_as_millrace_does_it(read: Read) -> None:
    settings = read(MINIMAL)
    assert settings.capture.value_modes == ValueModes()
    assert settings.capture.event_modes == EventModes()
    assert settings.log.topic_cleanup_policy == "compact"
    assert settings.format == {}


def test_the_preset_switches_defaults_and_leaves_what_is_said(read: Read) -> None:
    settings = read(
        'preset = "debezium"\n'
        + MINIMAL.replace("[kafka]", 'decimal.handling.mode = "double"\n[kafka]')
        + "\n[log]\ntopic.partitions = 6\n[format]\n"
        "key.schemas.enable = false\n"
    )
    assert settings.capture.value_modes == ValueModes(
        decimal="double",
        time_precision="adaptive",
        interval="numeric",
        hstore="json",
        include_unknown=False,
        lossless=False,
    )
    assert settings.capture.event_modes == EventModes(
        tombstones=True,
        skipped=frozenset("t"),
        unchanged="placeholder",
        reselect=False,
        position_header=False,
        context_headers=True,
        key_change_headers=True,
    )
    assert (settings.log.topic_partitions, settings.log.topic_cleanup_policy) == (6, "delete")
    assert settings.format == {"key.schemas.enable": "false"}
    assert settings.capture.slot_name == "debezium"


def test_the_preset_may_come_from_the_environment(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_PRESET", "debezium")
    monkeypatch.setenv("MILLRACE_FORMAT__VALUE", "avro")
    monkeypatch.setenv("MILLRACE_FORMAT__VALUE__SCHEMA__REGISTRY__URL", "http://registry:8081")
    settings = read(MINIMAL)
    assert not settings.capture.lossless
    assert settings.format == {
        "value": "avro",
        "value.schema.registry.url": "http://registry:8081",
    }


def test_a_placeholder_is_text_or_bytes_and_asks_to_be_used(read: Read) -> None:
    text = capture(read, 'unavailable.value.placeholder = "gone"').capture
    assert text.value_modes.placeholder == b"gone"
    assert text.event_modes.unchanged == "placeholder"
    assert (
        capture(read, 'unavailable.value.placeholder = "hex:00ff"').capture.value_modes.placeholder
        == b"\x00\xff"
    )


@pytest.mark.parametrize(
    ("given", "unchanged", "reselect"),
    [
        ("", "absent", True),
        ('toast.unavailable = "absent"', "absent", False),
        ('toast.unavailable = "placeholder"', "placeholder", False),
        ('unavailable.value.placeholder = "gone"', "placeholder", False),
        (
            'unavailable.value.placeholder = "gone"\ntoast.unavailable = "reselect"',
            "absent",
            True,
        ),
    ],
)
def test_unchanged_values_are_read_again_unless_something_else_is_asked_for(
    read: Read, given: str, unchanged: str, reselect: bool
) -> None:
    modes = capture(read, given).capture.event_modes
    assert (modes.unchanged, modes.reselect) == (unchanged, reselect)


def test_schema_lists_narrow_what_table_lists_let_through(read: Read) -> None:
    lists = 'schema.include.list = "public, app_.*"\ntable.exclude.list = ".*_tmp"\n'
    settings = capture(read, lists).capture
    assert settings.captures("app_one.t")
    assert not settings.captures("app_one.t_tmp")
    assert not settings.captures("xapp_one.t")
    assert not capture(read, 'schema.exclude.list = "app_.*"').capture.captures("app_one.t")


def test_columns_are_chosen_masked_and_made_keys_by_patterns(read: Read) -> None:
    lines = """
column.exclude.list = "public.pii.secret"
column.mask.with.12.chars = "public.pii.ssn"
column.truncate.to.5.chars = ["public.pii.bio", "public.pii.ssn"]
column.mask.hash.v2.SHA-256.with.salt.CzQMA0cB5K = "public.pii.email"
message.key.columns = "public.mk:email;(.*).nopk:tenant, name"
"""
    modes = capture(read, lines).capture.column_modes
    assert not modes.keeps("public.pii", "SECRET")
    assert modes.keeps("public.pii", "secrets")
    rule = modes.rule("public.pii", "ssn")
    assert rule is not None
    assert (rule.kind, rule.length) == ("truncate", 5), "Debezium asks truncation first"
    rule = modes.rule("public.pii", "email")
    assert rule is not None
    assert (rule.kind, rule.hash, rule.salt, rule.version) == ("hash", "SHA-256", "CzQMA0cB5K", 2)
    assert modes.rule("public.pii", "id") is None
    assert modes.key_columns("public.mk") == ("email",)
    assert modes.key_columns("sales.nopk") == ("tenant", "name")
    assert modes.key_columns("public.other") is None


def test_an_escaped_comma_belongs_to_the_pattern(read: Read) -> None:
    settings = capture(read, "table.include.list = 'public.a{1\\,2},public.b'").capture
    assert settings.table_include_list == ("public.a{1,2}", "public.b")


def test_snapshots_follow_the_order_of_the_include_list(read: Read) -> None:
    settings = capture(read, 'table.include.list = "public.b,public.a.*"').capture
    names = ["public.a1", "public.a0", "public.b"]
    assert sorted(names, key=settings.snapshot_rank) == ["public.b", "public.a0", "public.a1"]


def test_a_snapshot_may_leave_tables_out(read: Read) -> None:
    settings = capture(read, 'snapshot.include.collection.list = "public.a"').capture
    assert settings.snapshots("public.a")
    assert not settings.snapshots("public.b")
    assert not capture(read, 'snapshot.mode = "no_data"').capture.snapshots("public.a")


def test_statements_of_a_snapshot_are_named_by_their_tables(read: Read) -> None:
    lines = """
"snapshot.select.statement.overrides" = "public.a"
"snapshot.select.statement.overrides.public.a" = "SELECT 1"
"""
    assert capture(read, lines).capture.snapshot_select_statements == {"public.a": "SELECT 1"}


def test_transforms_come_as_they_are_written_or_ordered(read: Read) -> None:
    text = """
[transforms.route]
type = "org.apache.kafka.connect.transforms.RegexRouter"
regex = "a"
[transforms.unwrap]
type = "io.debezium.transforms.ExtractNewRecordState"
add.fields = "op,table"
drop.tombstones = false
"""
    written = read(MINIMAL + text).transforms
    assert [transform.name for transform in written] == ["route", "unwrap"]
    assert written[1].type == "io.debezium.transforms.ExtractNewRecordState"
    assert written[1].options == {"add.fields": "op,table", "drop.tombstones": "false"}
    assert read(MINIMAL + text.replace("[transforms.", "[predicates.")).predicates == written
    ordered = read(MINIMAL + '[transforms]\norder = "unwrap,route"\n' + text).transforms
    assert [transform.name for transform in ordered] == ["unwrap", "route"]


@pytest.mark.parametrize(
    ("section", "line", "message"),
    [
        ("capture", 'decimal.handling.mode = "exact"', "decimal.handling.mode: Input should be"),
        ("capture", 'skipped.operations = "x"', "skipped.operations"),
        ("capture", 'column.mask.hash.SHA-9.with.salt.x = "a"', "unknown hash SHA-9"),
        ("capture", 'column.mask.with.3.chars = "(("', "isn't a regular expression"),
        ("capture", 'column.mask.with.99999999999.chars = "a"', "at most 10485760 characters"),
        ("capture", 'message.key.columns = "public.t"', "message.key.columns: .*<schema>.<table>"),
        ("capture", 'heartbeat.action.query = "SELECT 1"', "needs heartbeat.interval.ms"),
        ("capture", 'heartbeat.topics.prefix = "x"', "heartbeat.topics.prefix: unknown key"),
        ("capture", 'snapshot.mode = "sometimes"', "snapshot.mode: Input should be"),
        ("capture", 'snapshot.select.statement.overrides = "public.a"', "overrides.public.a"),
        ("capture", 'unavailable.value.placeholder = "hex:0"', "hexadecimal"),
        ("transforms", 'unwrap.add.fields = "op"', "unwrap.type is required"),
        ("transforms", "unwrap = {}", "unwrap: unknown key; options are <name>.type"),
        ("transforms", 'order = "a"', "order must name each transform once: a"),
    ],
)
def test_a_mistake_is_named(read: Read, section: str, line: str, message: str) -> None:
    text = MINIMAL.replace("[kafka]", f"{line}\n[kafka]")
    if section != "capture":
        text = f"{MINIMAL}[{section}]\n{line}\n"
    with pytest.raises(ConfigError, match=rf"(?s)\[{section}\].*{message}"):
        read(text)


def test_columns_of_topics_that_tell_no_types_are_told_by_table(read: Read) -> None:
    settings = read(
        MINIMAL
        + '\n[lakehouse]\npath = "/lake"\ntopics_written_by = "debezium"\n'
        + '[lakehouse.types."public.t"]\nid = "bigint"\nprice = "numeric(10,2)"\n'
        + '[lakehouse.types."s.odd.name"]\n"a b" = "text[]"\n'
    )
    assert settings.lakehouse is not None
    assert settings.lakehouse.types == {
        "public.t": {"id": "bigint", "price": "numeric(10,2)"},
        "s.odd.name": {"a b": "text[]"},
    }


def test_our_own_log_tells_its_types_itself(read: Read) -> None:
    with pytest.raises(ConfigError, match=r"types is for topics_written_by"):
        read(MINIMAL + '\n[lakehouse]\npath = "/lake"\n[lakehouse.types."public.t"]\nid = "int"\n')
