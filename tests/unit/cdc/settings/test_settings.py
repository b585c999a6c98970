"""millrace.toml and the environment: typed, overridable, and silent about secrets."""

import importlib.resources
import os
from datetime import timedelta
from pathlib import Path
from typing import Never

import pytest

from cdc.errors import ConfigError
from cdc.settings import Settings, load
from cdc.settings.drops import DropRule

MINIMAL = """
[source]
host = "db"
password = "hunter2"
[capture]
topic.prefix = "shop"
[kafka]
bootstrap.servers = "kafka:9092"
"""


@pytest.fixture
def read(tmp_path: Path) -> "Read":
    return Read(tmp_path / "millrace.toml")


class Read:
    """Write a configuration and load it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, text: str) -> Settings:
        self.path.write_text(text)
        return load(self.path)


def test_bare_and_quoted_dotted_names_are_the_same(read: Read) -> None:
    bare = read(MINIMAL)
    quoted = read(MINIMAL.replace("topic.prefix", '"topic.prefix"'))
    assert bare == quoted
    assert bare.capture.topic_prefix == "shop"
    assert bare.kafka == {"bootstrap.servers": "kafka:9092"}


def test_library_options_may_be_written_as_numbers_and_booleans(read: Read) -> None:
    settings = read(MINIMAL + "linger.ms = 5\nenable.idempotence = true\n")
    assert settings.kafka["linger.ms"] == "5"
    assert settings.kafka["enable.idempotence"] == "true"


def test_the_environment_overrides_the_file(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CAPTURE__TOPIC__PREFIX", "other")
    monkeypatch.setenv("MILLRACE_SOURCE__PASSWORD", "0123")
    monkeypatch.setenv("MILLRACE_LOG__KEEP", "36h")
    monkeypatch.setenv("MILLRACE_SEARCH__URL", "http://search:9200")
    settings = read(MINIMAL)
    assert settings.capture.topic_prefix == "other"
    assert settings.source["password"] == "0123"
    assert settings.log.keep == timedelta(hours=36)
    assert settings.search is not None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SOURCE": '{"password": "s3cret"'}, "not valid JSON.*MILLRACE_SOURCE, character 22"),
        ({"SOURCE": "s3cret", "SOURCE__HOST": "db"}, "MILLRACE_SOURCE isn't a section"),
    ],
)
def test_a_variable_that_is_no_section_is_named_without_its_text(
    read: Read, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(f"MILLRACE_{name}", text)
    with pytest.raises(ConfigError, match=message) as refused:
        read(MINIMAL)
    assert "s3cret" not in str(refused.value)


def test_secrets_come_from_environment_variables_and_files(
    read: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "from-env")
    (tmp_path / "secret").write_text("from-file\n")
    text = MINIMAL.replace("hunter2", "${env:DB_PASSWORD}")
    settings = read(text + f'sasl.password = "${{file:{tmp_path / "secret"}}}"\n')
    assert settings.source["password"] == "from-env"
    assert settings.kafka["sasl.password"] == "from-file"


@pytest.mark.parametrize(
    ("capture", "more", "changes"),
    [
        ('decimal.handling.mode = "precise"', "", r"\*.handling.mode, time.precision.mode"),
        ("position.header = false", "", "position.header"),
        ("lossless = false", "", "lossless"),
        ("", '[format]\nvalue = "avro"', r"\[format\]"),
        ("", '[transforms]\nroute.type = "x"\nroute.regex = "y"', r"\[transforms\]"),
    ],
)
def test_only_in_events_of_our_own_a_partition_can_end(
    read: Read, capture: str, more: str, changes: str
) -> None:
    text = MINIMAL.replace("[capture]", f'[capture]\npartition.drop.policy = "delete"\n{capture}')
    with pytest.raises(ConfigError, match=rf"own events, which these change: {changes} \("):
        read(text + more)
    preset = 'preset = "debezium"\n'
    with pytest.raises(ConfigError, match="which these change: preset, "):
        read(preset + text + more)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('[capture]\ntopic.prefx = "x"', r"\[capture\] topic.prefx: unknown key"),
        ("[captures]", r"\[captures\]: unknown key"),
        ('[log]\nkeep = "7 weeks"', r"\[log\] keep: .*timedelta"),
        ('[log]\nkeep = "0s"', r"\[log\] keep: .*greater than 0"),
        ('[log]\nkeep = "-1d"', r"\[log\] keep: .*greater than 0"),
        ('[log]\nkeep = "99999999999999d"', r"\[log\] keep: 99999999999999d is too long"),
        (
            "[capture]\nmax.batch.size.in.bytes = 2147483648",
            "in.bytes: must be at most 2147483647",
        ),
        ('[capture]\ntable.include.list = "a{99999999999}"', "list: isn't a regular expression"),
        (
            '[capture]\nposition.header = false\noversized.record = "claim_check"',
            "claim_check needs Millrace's own events",
        ),
        (
            '[search]\nurl = "http://s:9200"\n[[search.documents]]\nname = "d"\ntable = "public.t"',
            "the lakehouse's tables: add a section",
        ),
        ("[capture.slot]", r"\[capture\] slot: unknown key"),
        ('[capture]\ntable.include.list = "(("', r"table.include.list.*isn't a regular expression"),
        ("[log", "not valid TOML"),
        ("[capture]\nmax.batch.size = 1\nmax.batch.size.in.bytes = 9", 'quote.*"max.batch.size" ='),
        *(
            (f'[source]\ndbname = "{name}"', r"\[source\] dbname is a connection string")
            for name in ("postgresql://u:hunter2@h/db", "host=h password = hunter2")
        ),
        *(
            (f'[health]\nlisten = "{listen}"', r"\[health\] listen: must be address:port")
            for listen in (":8080", "8080", "127.0.0.1:0", "127.0.0.1:65536", "[zz]:80", "::1:80")
        ),
        *(
            (f"[capture]\nslot.max.lag.bytes = {size}", "bytes: must be a whole number, or one")
            for size in ('"5gb"', '"1e9"', '"-1"', '""', "true")
        ),
        ("[capture]\nslot.max.lag.bytes = 0", "slot.max.lag.bytes: .*greater than 0"),
        ('[capture]\nslot.name = "Bad-Name"', r"slot.name: String should match"),
        ('[source]\npassfile = "${env:NOT_SET_ANYWHERE}"', "NOT_SET_ANYWHERE.*isn't set.*write"),
        ('[source]\npassfile = "${vault:secret}"', r"\$\{vault:secret\}: unknown reference"),
        ('[source]\nreplication = "database"', r"\[source\] can't have replication"),
    ],
)
def test_a_mistake_is_named_with_its_key(read: Read, broken: str, message: str) -> None:
    section = broken.split("\n", maxsplit=1)[0]
    known = f"{section}\n" in MINIMAL
    text = MINIMAL.replace(f"{section}\n", f"{broken}\n") if known else MINIMAL + broken
    with pytest.raises(ConfigError, match=r"(?s)" + message) as caught:
        read(text)
    assert "hunter2" not in str(caught.value)


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="millrace init"):
        load(tmp_path / "none.toml")


SECRET = """
[source]
host = "db"
password = "hunter2"
[snapshot_source]
password = "hunter2"
[capture]
topic.prefix = "shop"
column.mask.hash.SHA-256.with.salt.hunter2 = "a.b.c"
[format]
"value.schema.registry.url" = "https://u:hunter2@registry"
[kafka]
bootstrap.servers = "kafka:9092"
sasl.password = "hunter2"
[lakehouse]
path = "lake"
salt = "hunter2"
[search]
url = "https://u:hunter2@search"
[spark]
spark.hadoop.fs.s3a.secret.key = "hunter2"
"""
"""A secret wherever the settings may have one."""


def test_secrets_are_not_in_the_settings_text(read: Read) -> None:
    for search in ("", 'username = "u"\npassword = "hunter2"\n', 'api.key = "hunter2"\n'):
        settings = read(SECRET.replace("[spark]", f"{search}[spark]"))
        for text in (repr(settings), str(settings), str(settings.capture), str(settings.search)):
            assert "shop" in repr(settings)
            assert "hunter2" not in text


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"a.b.c"', '"a.(b"'),
        ('salt.hunter2 = "a.b.c"', "salt.hunter2 = 1"),
        ('host = "db"', 'host = "postgresql://u:hunter2@db"'),
        ('host = "db"', 'dbname = "postgresql://u:hunter2@db"'),
        ('"https://u:hunter2@search"', '"ftp://u:hunter2@search"'),
        ('path = "lake"', 'path = "lake"\nkeep = "never"'),
    ],
)
def test_secrets_are_not_in_what_is_said_of_wrong_settings(
    read: Read, right: str, wrong: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(SECRET.replace(right, wrong, 1))
    assert "hunter2" not in str(refused.value)


def test_table_lists_match_whole_names_in_any_case(read: Read) -> None:
    lists = 'table.include.list = "public.a.*, sales\\\\.x"\ntable.exclude.list = ["public.abc"]\n'
    capture = read(MINIMAL.replace("[kafka]", lists + "[kafka]")).capture
    assert capture.captures("public.ab")
    assert capture.captures("PUBLIC.A")
    assert not capture.captures("public.abc")
    assert not capture.captures("xpublic.a")
    assert not capture.captures("sales.xy")


def test_the_example_that_init_writes_is_valid(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_PASSWORD", "x")
    example = importlib.resources.files("deploy").joinpath("example.toml").read_text("utf-8")
    assert read(example).capture.topic_prefix == "shop"


def test_what_becomes_of_a_dropped_table_is_said_of_all_and_of_each(read: Read) -> None:
    one = '{ source = "a.b", "table.drop.delay.ms" = 0 }, { source = "a.c" }'
    kept = '{ table = "a.b", "table.drop.policy" = "keep" }'
    settings = read(
        MINIMAL
        + f'[lakehouse]\npath = "lake"\ntable.drop.policy = "delete"\ntables = [{one}]\n'
        + f'[search]\nurl = "http://s"\ntable.drop.policy = "delete"\nindexes = [{kept}]\n'
    )
    assert settings.lakehouse is not None
    assert settings.search is not None
    rules = [settings.lakehouse.drop_rule(table) for table in settings.lakehouse.tables]
    assert rules == [DropRule("delete", 0), DropRule("delete", 86_400_000)]
    rules = [settings.search.drop_rule(settings.search.index_of(name)) for name in ("a.b", "a.c")]
    assert rules == [DropRule("keep"), DropRule("delete")]


def test_topics_of_a_real_debezium_dont_tell_which_tables_are_gone(read: Read) -> None:
    debezium = '[lakehouse]\npath = "lake"\ntopics_written_by = "debezium"\n'
    with pytest.raises(ConfigError, match=r"table\.drop\.policy"):
        read(MINIMAL + debezium + 'table.drop.policy = "delete"\n')


def test_what_becomes_of_a_dropped_column_is_said_of_all_and_of_each(read: Read) -> None:
    policy = '"column.drop.policy" = '
    tables = f'{{ source = "a.b", {policy}"remove" }}, {{ source = "a.c" }}'
    documents = f'{{ name = "d", table = "a.b", {policy}"keep" }}'
    settings = read(
        MINIMAL
        + f'[lakehouse]\npath = "lake"\ntables = [{tables}]\n'
        + f'[search]\nurl = "http://s"\ndocuments = [{documents}]\n'
    )
    assert settings.lakehouse is not None
    assert settings.search is not None
    lakehouse, search = settings.lakehouse, settings.search
    assert [lakehouse.removes_columns(table) for table in lakehouse.tables] == [True, False]
    assert search.removes_columns(search.index_of("a.b"))
    assert not search.removes_columns(search.documents[0])


def test_columns_are_not_removed_where_that_would_be_wrong_or_not_be_so(read: Read) -> None:
    lakehouse = f'{MINIMAL}[lakehouse]\npath = "lake"\n'
    archive = '{ source = "a.b", kind = "changes", "column.drop.policy" = "remove" }'
    with pytest.raises(ConfigError, match="an archive keeps every event unchanged"):
        read(f"{lakehouse}tables = [{archive}]\n")
    with pytest.raises(ConfigError, match="may not be a dropped column"):
        read(f'{lakehouse}topics_written_by = "debezium"\ncolumn.drop.policy = "remove"\n')


def test_signals_come_by_a_topic_of_anyones_only_where_that_is_asked_for(read: Read) -> None:
    assert read(MINIMAL).capture.signal_topic == "__millrace.shop.requests"
    on = MINIMAL.replace("[capture]", '[capture]\nsignal.enabled.channels = "source,kafka"')
    assert read(on).capture.signal_topic == "shop-signal"


def test_a_file_that_this_user_may_not_read_is_told_with_the_lines_that_let_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path, **_options: object) -> Never:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    monkeypatch.setattr(os, "getegid", lambda: 12_345)
    path = tmp_path / "millrace.toml"
    with pytest.raises(ConfigError, match="the user 54321 can't read") as refused:
        load(path)
    assert refused.value.where == str(path)
    assert f"chgrp 12345 {path} && chmod 640 {path}" in refused.value.remedy


def test_a_file_that_isnt_one_or_isnt_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)
    path = tmp_path / "millrace.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="isn't UTF-8"):
        load(path)


@pytest.mark.parametrize("url", ["http://[oops", "http://u:hunter2", "https://", "http://h:99999"])
@pytest.mark.parametrize("section", ["search", "format"])
def test_a_url_that_is_none_is_told_and_not_shown(tmp_path: Path, url: str, section: str) -> None:
    key = {"search": "url", "format": "value.schema.registry.url"}[section]
    path = tmp_path / "millrace.toml"
    path.write_text(
        'source = { host = "localhost" }\ncapture = { "topic.prefix" = "t" }\n'
        'kafka = { "bootstrap.servers" = "localhost:1" }\n'
        f'{section} = {{ "{key}" = "{url}" }}\n'
    )
    with pytest.raises(ConfigError, match="must be a URL") as refused:
        load(path)
    assert f"[{section}] {key}" in str(refused.value)
    assert "hunter2" not in str(refused.value)
