"""All sections → one frozen model. The preset fills what the sections leave open."""

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from cdc.errors import ConfigError
from cdc.records.topics import Cleanup
from cdc.settings.capture import CaptureSettings
from cdc.settings.exposure import Exposure, exposures, registry_urls
from cdc.settings.kinds import Address, Duration, LibraryOptions, Section, repeated, web_address
from cdc.settings.lakehouse import LakehouseSettings
from cdc.settings.modes import ValueModes
from cdc.settings.search import SearchSettings
from cdc.settings.views import View

DEBEZIUM: Final[Mapping[str, Mapping[str, object]]] = {
    "capture": {
        "slot.name": "debezium",
        "slot.failover": False,
        "publication.name": "dbz_publication",
        "heartbeat.source.interval.ms": 0,
        "incremental.snapshot.chunk.size": 1_024,
        "incremental.snapshot.watermarking.strategy": "insert_insert",
        "snapshot.max.threads": 1,
        "lossless": False,
        "decimal.handling.mode": "precise",
        "time.precision.mode": "adaptive",
        "interval.handling.mode": "numeric",
        "hstore.handling.mode": "json",
        "include.unknown.datatypes": False,
        "toast.unavailable": "placeholder",
        "tombstones.on.delete": True,
        "skipped.operations": "t",
        "position.header": False,
        "extended.headers.enabled": True,
        "key.change.headers": True,
    },
    "log": {"topic.partitions": 1, "topic.cleanup.policy": "delete"},
}
_CONNECTION_STRING: Final = re.compile(r"://|\bpassword\s*=")


class ConnectPlugin(NamedTuple):
    """A transform or a predicate: its class in Kafka Connect, and its options as text."""

    name: str
    type: str
    options: Mapping[str, str]


def in_order(section: Any) -> Any:
    """``{"order": "a,b", "a.type": …, "a.add.fields": …}`` → the plugins in their order.

    Without ``order`` they keep the order in which they are written.
    """
    if not isinstance(section, Mapping):
        return section
    given: dict[str, dict[str, str]] = {}
    for key, value in section.items():
        name, dot, option = str(key).partition(".")
        if dot:
            given.setdefault(name, {})[option] = _text(value)
        elif name != "order":
            raise ValueError(f"{name}: unknown key; options are <name>.type, <name>.…")
    order = [name.strip() for name in str(section.get("order", ",".join(given))).split(",")]
    order = [name for name in order if name]
    if sorted(order) != sorted(given):
        odd = sorted(set(order) ^ set(given)) or order
        raise ValueError(f"order must name each transform once: {', '.join(odd)}")
    for name in order:
        if not given[name].get("type"):
            raise ValueError(f"{name}.type is required")
    return tuple(ConnectPlugin(name, given[name].pop("type"), given[name]) for name in order)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def switched(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given sections with Debezium's defaults for what they leave open."""
    result = dict(sections)
    for section, defaults in DEBEZIUM.items():
        given = result.get(section, {})
        if isinstance(given, Mapping):
            result[section] = {
                key: value
                for key, value in defaults.items()
                if key not in given and key.replace(".", "_") not in given
            } | dict(given)
    return result


class LogSettings(Section):
    """How topics are created, and how long the log keeps everything.

    By default topics have as many copies as the cluster has brokers, but at most three.
    """

    topic_partitions: int = Field(3, alias="topic.partitions", ge=1, le=1_000)
    topic_replication_factor: int | None = Field(None, alias="topic.replication.factor", ge=1)
    topic_min_insync_replicas: int | None = Field(None, alias="topic.min.insync.replicas", ge=1)
    topic_cleanup_policy: Cleanup = Field("compact", alias="topic.cleanup.policy")
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    keep: Duration = Field(timedelta(days=7), gt=timedelta(0))

    @model_validator(mode="after")
    def _may_be_written(self) -> Self:
        replicas, in_sync = self.topic_replication_factor, self.topic_min_insync_replicas
        if replicas is not None and in_sync is not None and in_sync > replicas:
            raise ValueError(
                "topic.min.insync.replicas exceeds topic.replication.factor: a topic can't have"
                " more copies in sync than copies"
            )
        return self


class HealthSettings(Section):
    """The daemon's address for health probes; none by default."""

    listen: Address | None = None
    ready_timeout_ms: int = Field(30_000, alias="ready.timeout.ms", ge=1)


class Settings(Section):
    """All settings of millrace.toml.

    ``source`` takes libpq's keywords, ``snapshot_source`` those that differ there, ``kafka``
    librdkafka's, ``spark`` Spark's configuration, ``format`` the converters' options (``value``,
    ``value.schemas.enable``). With ``tls = "required"`` no plain text leaves this machine.
    """

    preset: Literal["millrace", "debezium"] = "millrace"
    tls: Literal["optional", "required"] = "optional"
    source: LibraryOptions = Field(repr=False)
    snapshot_source: LibraryOptions = Field(default={}, repr=False)
    capture: CaptureSettings
    format: LibraryOptions = Field(default={}, repr=False)
    transforms: Annotated[tuple[ConnectPlugin, ...], BeforeValidator(in_order)] = ()
    predicates: Annotated[tuple[ConnectPlugin, ...], BeforeValidator(in_order)] = ()
    kafka: LibraryOptions = Field(repr=False)
    log: LogSettings = LogSettings()
    health: HealthSettings = HealthSettings()
    lakehouse: LakehouseSettings | None = None
    views: tuple[View, ...] = ()
    search: SearchSettings | None = None
    spark: LibraryOptions = Field(default={}, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _take_preset(cls, data: dict[str, Any]) -> dict[str, Any]:
        return switched(data) if data.get("preset") == "debezium" else data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.kafka.get("bootstrap.servers"):
            raise ValueError("[kafka] needs bootstrap.servers")
        if self.capture.oversized_record == "claim_check" and (
            self.preset == "debezium"
            or self.format
            or self.transforms
            or not self.capture.position_header
        ):
            raise ValueError(
                "oversized.record = claim_check needs Millrace's own events: no preset, no "
                "[format], no transforms, and position.header"
            )
        if self.capture.partition_drop_policy == "delete" and (foreign := self.foreign_forms):
            raise ValueError(
                "partition.drop.policy = delete needs Millrace's own events, which these change: "
                + ", ".join(foreign)
            )
        _check_keywords("source", self.source)
        _check_keywords("snapshot_source", self.snapshot_source)
        for name in registry_urls(self.format):
            for address in self.format[name].split(","):
                try:
                    web_address(address.strip())
                except ValueError as error:
                    raise ValueError(f"[format] {name} {error}") from None
        if self.tls == "required":
            self._refuse_plain_text()
        return self

    @model_validator(mode="after")
    def _documents_have_tables(self) -> Self:
        if self.search is not None and self.search.documents and self.lakehouse is None:
            raise ValueError(
                "[[search.documents]] need the lakehouse's tables: add a section [lakehouse]"
                ' with path = "…"'
            )
        return self

    @model_validator(mode="after")
    def _views_have_tables(self) -> Self:
        if self.views and self.lakehouse is None:
            raise ValueError(
                '[[views]] need the lakehouse\'s tables: add a section [lakehouse] with path = "…"'
            )
        if self.views and not self.captures_itself:
            raise ValueError(
                "[[views]] need Millrace's own log: the topics of a real Debezium don't show at"
                " which instants all tables are complete"
            )
        if twice := repeated([name for view in self.views for name in view.tables]):
            raise ValueError(f"[[views]]: {twice}: give each view another name")
        return self

    def _refuse_plain_text(self) -> None:
        plain = [f"\n  {each}" for each in self.exposures if each.is_plain]
        if plain:
            raise ValueError('tls = "required" refuses plain text over a network:' + "".join(plain))

    @property
    def exposures(self) -> list[Exposure]:
        """Return the settings that let others on the network read or answer connections."""
        sources = {"[source]": self.source}
        if self.standby is not None:
            sources["[snapshot_source]"] = self.standby
        return exposures(sources, self.kafka, self.format, self.search)

    @property
    def foreign_forms(self) -> list[str]:
        """Return the settings that give events another form than merges read, by name."""
        capture = self.capture
        own_values = ValueModes(placeholder=capture.unavailable_value_placeholder)
        differing = {
            "preset": self.preset != "millrace",
            "[format]": bool(self.format),
            "[transforms]": bool(self.transforms),
            "lossless": not capture.lossless,
            "position.header": not capture.position_header,
            "*.handling.mode, time.precision.mode": capture.lossless
            and capture.value_modes != own_values,
            "field.name.adjustment.mode": capture.field_name_adjustment_mode != "none",
        }
        return [name for name, differs in differing.items() if differs]

    def require_lakehouse(self) -> LakehouseSettings:
        """Return the section [lakehouse]. Raise ConfigError without one."""
        if self.lakehouse is None:
            raise ConfigError(
                "the configuration has no lakehouse",
                where="[lakehouse]",
                remedy='add a section [lakehouse] with path = "…"',
            )
        return self.lakehouse

    def require_views(self, names: Collection[str] = ()) -> tuple[View, ...]:
        """Return the views of these names, or all. Raise ConfigError without any."""
        if not self.views:
            raise ConfigError(
                "the configuration has no view",
                where="[[views]]",
                remedy='add a section [[views]] with name = "…" and query = "SELECT …"',
            )
        there = [view.name for view in self.views]
        if unknown := sorted({*names}.difference(there)):
            raise ConfigError(
                f"unknown view: {', '.join(unknown)}",
                where="[[views]]",
                remedy=f"the views are: {', '.join(there)}",
            )
        return tuple(view for view in self.views if not names or view.name in names)

    def require_search(self) -> SearchSettings:
        """Return the section [search]. Raise ConfigError without one."""
        if self.search is None:
            raise ConfigError(
                "the configuration has no search server",
                where="[search]",
                remedy='add a section [search] with url = "…"',
            )
        return self.search

    @property
    def captures_itself(self) -> bool:
        """Whether the topics are Millrace's own, not a real Debezium's."""
        return self.lakehouse is None or self.lakehouse.topics_written_by == "millrace"

    def require_own_capture(self, command: str) -> None:
        """Raise ConfigError for a command that captures, if a real Debezium does that."""
        if not self.captures_itself:
            raise ConfigError(
                f"a real Debezium captures the source: `millrace {command}` could change its"
                " slot, its publication, its topics or the source",
                where='[lakehouse] topics_written_by = "debezium"',
                remedy="with this option Millrace only reads these topics, as `merge lakehouse`"
                " does. To capture with Millrace, remove it, and choose a topic.prefix, a"
                " slot.name and a publication.name that no Debezium uses",
            )

    @property
    def standby(self) -> LibraryOptions | None:
        """Return the connection to the standby from which chunks are read, if one is configured."""
        if not self.snapshot_source:
            return None
        # [source] may select the server that takes writes, which a standby isn't.
        return {**self.source, "target_session_attrs": "any", **self.snapshot_source}

    @property
    def begins_at_standby(self) -> bool:
        """Whether first snapshots are read there, while streaming, as it can't import a snapshot.

        They are read from [source] if nothing is streamed, or Debezium's order is required.
        """
        later = self.capture.snapshot_mode != "initial_only" and self.capture.lossless
        return later and self.standby is not None


def _check_keywords(section: str, keywords: LibraryOptions) -> None:
    if "://" in keywords.get("host", ""):  # errors name the host, and so a password in it
        raise ValueError(f"[{section}] host is a URL: set host, port, user and password as keys")
    if _CONNECTION_STRING.search(keywords.get("dbname", "")):
        raise ValueError(
            f"[{section}] dbname is a connection string: set host, port, user, password and"
            " dbname (the name alone) as keys"
        )
    if "replication" in keywords:
        raise ValueError(
            f"[{section}] can't have replication: Millrace sets it for the connections that need it"
        )
