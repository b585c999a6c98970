"""millrace.toml and MILLRACE_… environment variables → validated settings.

Names that Debezium has are Debezium's, dots and all; in TOML they can be written bare
(``topic.prefix = "shop"``) or quoted. Quotes are needed where one name begins another
(``"value" = "json"``, ``"value.schemas.enable" = true``): TOML has no value with members.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cdc.errors import ConfigError
from cdc.settings.model import Settings
from cdc.settings.sources import ENV_PREFIX, flattened

DEFAULT_PATH: Final = Path("millrace.toml")
_GATHERED: Final = {"column_rules", "snapshot_select_statements"}
"""Fields that aren't keys themselves: their members are."""


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
            f"the configuration file can't be read: {error}",
            where=str(path),
            remedy="let this user read it; it has to be UTF-8",
        ) from None
    try:
        sections = flattened(tomllib.loads(text))
        return Settings(**sections)
    except tomllib.TOMLDecodeError as error:
        remedy = "https://toml.io says what is"
        if "overwrite" in str(error):
            remedy = (
                'quote a name that another one begins with: "max.batch.size" = 5000 and '
                '"max.batch.size.in.bytes" = 1000000; no key may stand there twice'
            )
        raise ConfigError(f"not valid TOML: {error}", where=str(path), remedy=remedy) from None
    except ValidationError as error:
        raise ConfigError(
            "the configuration is not valid:" + "".join(map(_explain, error.errors())),
            where=f"{path} and {ENV_PREFIX}… variables",
            remedy="docs/configuration.md lists every key",
        ) from None


def _explain(error: Mapping[str, Any]) -> str:
    location = error["loc"] or ("settings",)
    section, names = location[0], location[1:]
    key = ".".join(name for name in names if isinstance(name, str) and name not in _GATHERED)
    full_key = f"[{section}] {key}".rstrip()
    reason = {
        "extra_forbidden": "no such key",
        "missing": "is required",
    }.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    return f"\n  {full_key}: {reason}"
