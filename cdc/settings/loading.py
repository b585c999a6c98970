"""millrace.toml and MILLRACE_… environment variables → validated settings.

Debezium's names are unchanged, including dots. In TOML they can be written bare (``topic.prefix =
"shop"``) or quoted. Quotes are needed if one name begins another (``"value" = "json"``,
``"value.schemas.enable" = true``), as a TOML value can't have members.

An environment variable overrides the file: ``MILLRACE_CAPTURE__TOPIC__PREFIX=shop``, with ``__``
for each dot. Any string may contain ``${env:NAME}`` or ``${file:/path}``, so that secrets stay out
of the file. No message shows a secret.
"""

import json
import os
import pwd
import re
import shlex
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cdc.errors import ConfigError
from cdc.lines import Lines
from cdc.settings.model import Settings

DEFAULT_PATH: Final = Path("millrace.toml")
ENV_PREFIX: Final = "MILLRACE_"
_REFERENCE: Final = re.compile(r"\$\{(\w+):([^}]+)\}")
_SALT: Final = re.compile(r"(\.with\.salt\.).+", re.DOTALL)
"""A key that contains a secret, in Debezium's form."""
_REMEDY: Final = "write ${env:NAME} and set the variable, or write ${file:/path}"
_VARIABLE: Final = (
    "set the variable (systemd's units and the cron jobs read /etc/millrace/environment), or"
    " write ${file:/path}"
)
_GATHERED: Final = {"column_rules", "snapshot_select_statements"}
"""Fields that aren't keys themselves, but their members are."""


def load(path: Path = DEFAULT_PATH) -> Settings:
    """Read the file and the environment. Raise ConfigError with the key and the remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            "the configuration file doesn't exist",
            where=str(path),
            remedy="write one with `millrace init`, or give another path with --config",
        ) from None
    except PermissionError:
        file = shlex.quote(str(path))
        raise ConfigError(
            f"the user {_user()} can't read the configuration file",
            where=str(path),
            remedy="let this user's group alone read it, since it may contain passwords: chgrp"
            f" {os.getegid()} {file} && chmod 640 {file}; the user needs access to its"
            " folder, too",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"can't read the configuration file: {error.strerror}", where=str(path)
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the configuration file isn't UTF-8: {error}",
            where=str(path),
            remedy="save it as UTF-8",
        ) from None
    try:
        sections = _flattened(tomllib.loads(text), str(path))
        for name, section in _flattened(_environment(), f"{ENV_PREFIX}… variables").items():
            in_file = sections.get(name)
            if isinstance(in_file, dict) and isinstance(section, dict):
                in_file.update(section)
            else:
                sections[name] = section
        return Settings.model_validate(sections)
    except tomllib.TOMLDecodeError as error:
        remedy = "https://toml.io has the syntax"
        if "overwrite" in str(error):
            remedy = (
                'quote a key that begins another key: "max.batch.size" = 5000 and'
                ' "max.batch.size.in.bytes" = 1000000; write each key only once'
            )
        raise ConfigError(f"not valid TOML: {error}", where=str(path), remedy=remedy) from None
    except ValidationError as error:
        raise ConfigError(
            Lines("the configuration isn't valid:" + "".join(map(_explain, error.errors()))),
            where=f"{path} and {ENV_PREFIX}… variables",
            remedy="docs/reference/configuration.md lists every key",
        ) from None


def files_named(path: Path) -> list[Path]:
    """Return the files that a configuration file includes, such as those of secrets."""
    text = path.read_text(encoding="utf-8")
    return [Path(name) for kind, name in _REFERENCE.findall(text) if kind == "file"]


def _user() -> str:
    """Return the name of the process's user, or the number if this machine has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _environment() -> dict[str, Any]:
    """Return all sections in variables. A whole section may be given as JSON."""
    sections: dict[str, Any] = {}
    # Sorted, so that a whole section comes before its members.
    for variable, text in sorted(os.environ.items()):
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        section, *dotted = variable[len(ENV_PREFIX) :].lower().split("__")
        if section not in Settings.model_fields:
            continue  # MILLRACE_JARS, for example, isn't a setting
        if not dotted:
            sections[section] = _whole(variable, text)
        elif isinstance(members := sections.setdefault(section, {}), dict):
            members[".".join(dotted)] = text
        else:
            whole = ENV_PREFIX + section.upper()
            raise ConfigError(
                f"{whole} isn't a section, so {variable} can't set a key of it",
                where=variable,
                remedy=f"unset {whole}, or give the section as JSON: {{…}}",
            )
    return sections


def _whole(variable: str, text: str) -> Any:
    """Parse a whole section, or the value of a key without a section."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:  # it has the text, and so maybe a secret
        raise ConfigError(
            f"not valid JSON: {error.msg}",
            where=f"{variable}, character {error.pos + 1}",
            remedy='write a section as: {"host": "db", "dbname": "shop"}',
        ) from None


def _flattened(sections: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Flatten sections into dotted names, and replace references by their secrets."""
    return {
        name: _flatten(value, f"[{name}] ", source)
        if isinstance(value, Mapping)
        else _resolve(value, f"{name} in {source}")
        for name, value in sections.items()
    }


def _flatten(
    section: Mapping[str, Any], where: str, source: str, prefix: str = ""
) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        name = prefix + key
        if isinstance(value, Mapping) and value:
            flat.update(_flatten(value, where, source, f"{name}."))
        else:  # also a name without members, which the section then refuses
            shown = _SALT.sub(r"\1…", where + name)
            flat[name] = _resolve(value, f"{shown} in {source}")
    return flat


def _resolve(value: Any, where: str) -> Any:
    """Replace references by their secrets. Raise ConfigError for a missing one."""
    if isinstance(value, str):
        return _REFERENCE.sub(partial(_dereference, where), value)
    if isinstance(value, list):
        return [_resolve(item, where) for item in value]
    if isinstance(value, Mapping):  # in a list, whose keys stay unchanged
        return {key: _resolve(item, where) for key, item in value.items()}
    return value


def _dereference(where: str, match: re.Match[str]) -> str:
    kind, name = match.groups()
    if kind == "env":
        if name not in os.environ:
            raise ConfigError(
                f"{match[0]}: the environment variable isn't set", where=where, remedy=_VARIABLE
            )
        return os.environ[name]
    if kind != "file":
        raise ConfigError(f"{match[0]}: unknown reference", where=where, remedy=_REMEDY)
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        what = f"{match[0]}: can't read the file: {error}"
        raise ConfigError(what, where=where, remedy=_REMEDY) from None


def _explain(error: Mapping[str, Any]) -> str:
    location = error["loc"] or ("settings",)
    section, names = location[0], location[1:]
    key = ".".join(name for name in names if isinstance(name, str) and name not in _GATHERED)
    full_key = _SALT.sub(r"\1…", f"[{section}] {key}".rstrip())
    reason = {
        "extra_forbidden": "unknown key",
        "missing": "is required",
    }.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    return f"\n  {full_key}: {reason}"
