"""TOML's tables and MILLRACE_… environment variables → flat sections with dotted names.

An environment variable overrides the file: ``MILLRACE_CAPTURE__TOPIC__PREFIX=shop``, with ``__``
for each dot. Any string may hold ``${env:NAME}`` or ``${file:/path}``, so that secrets stay out of
the file; no secret is echoed.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from cdc.errors import ConfigError

ENV_PREFIX: Final = "MILLRACE_"
_REFERENCE: Final = re.compile(r"\$\{(\w+):([^}]+)\}")
_REMEDY: Final = "write ${env:NAME}, and set the variable, or ${file:/path} of a file to be read"


class Environment(PydanticBaseSettingsSource):
    """The variables that begin with MILLRACE_; a whole section may be given as JSON."""

    def get_field_value(
        self,
        field: FieldInfo,  # noqa: ARG002 (pydantic names the arguments)
        field_name: str,
    ) -> tuple[Any, str, bool]:
        """One section."""
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """All sections that variables speak of."""
        sections: dict[str, Any] = {}
        # Sorted: a section as a whole comes before its members.
        for variable, text in sorted(os.environ.items()):
            if not variable.upper().startswith(ENV_PREFIX):
                continue
            section, *dotted = variable[len(ENV_PREFIX) :].lower().split("__")
            if section not in self.settings_cls.model_fields:
                continue  # MILLRACE_JARS and the like are others' variables
            if dotted:
                sections.setdefault(section, {})[".".join(dotted)] = text
            else:
                sections[section] = json.loads(text) if text.startswith("{") else text
        return flattened(sections)


def flattened(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Sections whose keys are dotted names, with secrets in the place of references."""
    return {
        name: _flatten(value) if isinstance(value, Mapping) else _resolve(value)
        for name, value in sections.items()
    }


def _flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:  # also a name without members, so that whoever reads the section refuses it
            flat[prefix + key] = _resolve(value)
    return flat


def _resolve(value: Any) -> Any:
    """Put secrets in the place of references; raises ConfigError where one leads nowhere."""
    if isinstance(value, str):
        return _REFERENCE.sub(_dereference, value)
    if isinstance(value, list):
        return [_resolve(item) for item in value]
    if isinstance(value, Mapping):  # of a list: its keys are as they are
        return {key: _resolve(item) for key, item in value.items()}
    return value


def _dereference(match: re.Match[str]) -> str:
    kind, name = match.groups()
    if kind == "env":
        if name not in os.environ:
            raise ConfigError(f"{match[0]}: the environment variable is not set", remedy=_REMEDY)
        return os.environ[name]
    if kind != "file":
        raise ConfigError(f"{match[0]}: there is no such reference", remedy=_REMEDY)
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        what = f"{match[0]}: the file can't be read: {error}"
        raise ConfigError(what, remedy=_REMEDY) from None
