"""millrace.toml and MILLRACE_… environment variables → validated settings, a module per concern."""

from cdc.settings.capture import CaptureSettings
from cdc.settings.kinds import Duration, LibraryOptions
from cdc.settings.lakehouse import LakehouseSettings
from cdc.settings.loading import DEFAULT_PATH, ENV_PREFIX, load
from cdc.settings.model import ConnectPlugin, LogSettings, Settings
from cdc.settings.search import SearchSettings
from cdc.settings.views import View

__all__ = [
    "DEFAULT_PATH",
    "ENV_PREFIX",
    "CaptureSettings",
    "ConnectPlugin",
    "Duration",
    "LakehouseSettings",
    "LibraryOptions",
    "LogSettings",
    "SearchSettings",
    "Settings",
    "View",
    "load",
]
