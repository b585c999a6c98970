"""A configuration file → the settings of a command that connects, with warnings of exposures.

Each start warns, as the user of a command may not have written the configuration.
"""

import sys
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cdc.errors import ConfigError
from cdc.settings import Duration, Settings, load
from deploy.commands.printing import printable_line


def load_to_connect(path: Path) -> Settings:
    """Read the settings, and print what others on the network can read to standard error."""
    settings = load(path)
    for exposure in settings.exposures:
        print(f"millrace: warning: {printable_line(str(exposure))}", file=sys.stderr)
    return settings


def seconds(text: str) -> float:
    """Return the duration in an option. Raise ConfigError if it isn't one."""
    try:
        return TypeAdapter(Duration).validate_python(text).total_seconds()
    except ValidationError:
        raise ConfigError(f"{text} isn't a duration", remedy="write it as 30s, 5m or 1h") from None
