"""All sections in one frozen model; what the sections don't say, the preset does."""

import re
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cdc.settings.capture import CaptureSettings
from cdc.settings.kinds import Address, Duration, LibraryOptions, Section
from cdc.settings.lakehouse import LakehouseSettings
from cdc.settings.named import Named, in_order
from cdc.settings.presets import switched
from cdc.settings.search import SearchSettings
from cdc.settings.sources import Environment

_CONNECTION_STRING: Final = re.compile(r"://|\bpassword\s*=")


class LogSettings(Section):
    """How the topics are made, and how long the log keeps everything."""

    topic_partitions: int = Field(3, alias="topic.partitions", ge=1, le=1_000)
    topic_replication_factor: int = Field(-1, alias="topic.replication.factor", ge=-1)
    topic_cleanup_policy: Literal["compact", "delete"] = Field(
        "compact", alias="topic.cleanup.policy"
    )
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    keep: Duration = Field(timedelta(days=7), gt=timedelta(0))


class HealthSettings(Section):
    """Where the running daemon answers whether it is alive and captures; nowhere by default."""

    listen: Address | None = None
    ready_timeout_ms: int = Field(30_000, alias="ready.timeout.ms", ge=1)


class Settings(BaseSettings):
    """Everything that millrace.toml may say.

    ``source`` takes libpq's keywords, ``snapshot_source`` those that are others there, ``kafka``
    librdkafka's, ``spark`` Spark's configuration, ``format`` the converters' options (``value``,
    ``value.schemas.enable``).
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    preset: Literal["millrace", "debezium"] = "millrace"
    source: LibraryOptions = Field(repr=False)
    snapshot_source: LibraryOptions = Field(default={}, repr=False)
    capture: CaptureSettings
    format: LibraryOptions = Field(default={}, repr=False)
    transforms: Annotated[tuple[Named, ...], BeforeValidator(in_order)] = ()
    predicates: Annotated[tuple[Named, ...], BeforeValidator(in_order)] = ()
    kafka: LibraryOptions = Field(repr=False)
    log: LogSettings = LogSettings()
    health: HealthSettings = HealthSettings()
    lakehouse: LakehouseSettings | None = None
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
        _check_keywords("source", self.source)
        _check_keywords("snapshot_source", self.snapshot_source)
        return self

    @property
    def standby(self) -> LibraryOptions | None:
        """How to connect to where chunks are read, if that isn't [source] itself."""
        if not self.snapshot_source:
            return None
        # [source] may look for the server that takes writes, which a standby isn't.
        return {**self.source, "target_session_attrs": "any", **self.snapshot_source}

    @property
    def begins_at_standby(self) -> bool:
        """Whether first snapshots are left to it: it can't import one, and reads while streaming.

        Where nothing is streamed, or Debezium's order is wanted, they are read from [source].
        """
        later = self.capture.snapshot_mode != "initial_only" and self.capture.lossless
        return later and self.standby is not None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic names the arguments)
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before file: both have flat sections, so that one can override the other."""
        return (Environment(settings_cls), init_settings)


def _check_keywords(section: str, keywords: LibraryOptions) -> None:
    if _CONNECTION_STRING.search(keywords.get("dbname", "")):
        raise ValueError(
            f"[{section}] dbname is a connection string: host, port, user, password and dbname "
            "(the name alone) are keys of their own"
        )
    if "replication" in keywords:
        raise ValueError(f"[{section}] can't have replication: only some connections are for that")
