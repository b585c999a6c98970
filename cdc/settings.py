"""millrace.toml and MILLRACE_… environment variables → validated settings.

Names that Debezium has are Debezium's, dots and all; in TOML they can be written bare
(``topic.prefix = "shop"``) or quoted. An environment variable overrides the file:
``MILLRACE_CAPTURE__TOPIC__PREFIX=shop``, with ``__`` for each dot. Any string may hold
``${env:NAME}`` or ``${file:/path}``, so that secrets stay out of the file; no secret is echoed.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cdc.errors import ConfigError

ENV_PREFIX = "MILLRACE_"
DEFAULT_PATH = Path("millrace.toml")
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)\Z")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _duration(value: object) -> object:
    match = _DURATION.match(value) if isinstance(value, str) else None
    return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else value


def _patterns(value: object) -> object:
    """Debezium's form is one comma-separated string; a TOML array does as well."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _option(value: object) -> object:
    """A library's option is text to it, whatever TOML or the environment makes of it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Pattern = Annotated[str, BeforeValidator(_regex)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_patterns)]
Option = Annotated[str, BeforeValidator(_option)]
LibraryOptions = dict[str, Option]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True
    )


class CaptureSettings(_Section):
    """What is captured, and through which slot and publication."""

    topic_prefix: str = Field(alias="topic.prefix", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    slot_name: str = Field("millrace", alias="slot.name", pattern=r"^[a-z0-9_]{1,63}$")
    slot_max_retries: int = Field(6, alias="slot.max.retries", ge=0)
    slot_retry_delay_ms: int = Field(10_000, alias="slot.retry.delay.ms", ge=1)
    publication_name: str = Field("millrace", alias="publication.name", min_length=1)
    publication_autocreate_mode: Literal["filtered", "disabled"] = Field(
        "filtered", alias="publication.autocreate.mode"
    )
    table_include_list: Patterns = Field((), alias="table.include.list")
    table_exclude_list: Patterns = Field((), alias="table.exclude.list")
    table_without_key: Literal["retain", "refuse"] = Field("retain", alias="table.without.key")
    status_update_interval_ms: int = Field(
        2_000, alias="status.update.interval.ms", ge=100, le=5_000
    )
    max_batch_size: int = Field(20_000, alias="max.batch.size", ge=1)
    max_batch_size_in_bytes: int = Field(16 << 20, alias="max.batch.size.in.bytes", ge=1 << 16)
    snapshot_chunk_bytes: int = Field(32 << 20, alias="snapshot.chunk.bytes", ge=1 << 13)

    def captures(self, table: str) -> bool:
        """Whether ``schema.table`` passes the lists: whole-name, case-insensitive, as Debezium."""

        def listed(patterns: tuple[str, ...]) -> bool:
            return any(re.fullmatch(pattern, table, re.IGNORECASE) for pattern in patterns)

        return (not self.table_include_list or listed(self.table_include_list)) and not listed(
            self.table_exclude_list
        )


class LogSettings(_Section):
    """How the topics are made, and how long the log keeps everything."""

    topic_partitions: int = Field(3, alias="topic.partitions", ge=1, le=1_000)
    topic_replication_factor: int = Field(-1, alias="topic.replication.factor", ge=-1)
    keep: Duration = timedelta(days=7)


class LakehouseSettings(_Section):
    """Where the Delta tables go: a path of any Hadoop file system."""

    path: str = Field(min_length=1)


class SearchSettings(_Section):
    """The OpenSearch or Elasticsearch server, and how its indexes are named."""

    url: str = Field(pattern=r"^https?://")
    index_prefix: str = Field("", alias="index.prefix", pattern=r"^[a-z0-9._-]*$")
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = None
    bulk_bytes: int = Field(1 << 20, alias="bulk.bytes", ge=1 << 16)


class Settings(BaseSettings):
    """Everything that millrace.toml may say.

    ``source`` takes libpq's keywords, ``kafka`` librdkafka's, ``spark`` Spark's configuration.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    source: LibraryOptions = Field(repr=False)
    capture: CaptureSettings
    kafka: LibraryOptions = Field(repr=False)
    log: LogSettings = LogSettings()
    lakehouse: LakehouseSettings | None = None
    search: SearchSettings | None = None
    spark: LibraryOptions = Field(default={}, repr=False)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if "bootstrap.servers" not in self.kafka:
            raise ValueError("[kafka] needs bootstrap.servers")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic names the arguments)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before file; both flattened first, so that one can override the other."""
        return (_Flattened(settings_cls, env_settings), init_settings)


class _Flattened(PydanticBaseSettingsSource):
    """The environment's values with dotted names."""

    def __init__(self, settings_cls: type[BaseSettings], env: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._env = env

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self._env.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        return _flatten_sections(self._env())


def load(path: Path = DEFAULT_PATH) -> Settings:
    """Read the file and the environment; raises ConfigError naming the key and the remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            "there is no configuration file",
            where=str(path),
            remedy="write one with `millrace init`, or name yours with --config",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the configuration file can't be read: {error}", where=str(path)
        ) from None
    try:
        sections = _flatten_sections(tomllib.loads(text))
        return Settings(**sections)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", where=str(path)) from None
    except ValidationError as error:
        raise ConfigError(
            "the configuration is not valid:" + "".join(map(_explain, error.errors())),
            where=f"{path} and {ENV_PREFIX}… variables",
            remedy="docs/configuration.md lists every key",
        ) from None


def _explain(error: Mapping[str, Any]) -> str:
    *sections, key = [str(part) for part in error["loc"]] or ["settings"]
    place = f"[{'.'.join(sections)}] {key}" if sections else f"[{key}]"
    reason = {
        "extra_forbidden": "no such key",
        "missing": "is required",
    }.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    return f"\n  {place}: {reason}"


def _flatten_sections(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _flatten(value) if isinstance(value, Mapping) else _resolve(value)
        for name, value in sections.items()
    }


def _flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = _resolve(value)
    return flat


def _resolve(value: Any) -> Any:
    """Put secrets in the place of references; raises ConfigError where one leads nowhere."""
    if isinstance(value, str):
        return _REFERENCE.sub(_dereference, value)
    return value


def _dereference(match: re.Match[str]) -> str:
    kind, name = match.groups()
    if kind == "env":
        if name not in os.environ:
            raise ConfigError(f"{match[0]}: the environment variable is not set")
        return os.environ[name]
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{match[0]}: the file can't be read: {error}") from None
