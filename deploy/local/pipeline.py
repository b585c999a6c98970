"""Servers → a whole pipeline on them: configuration, daemon and merge jobs as separate processes.

The demo, the end-to-end tests and the benchmarks run Millrace in this way, as a user does.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg
from psycopg.conninfo import make_conninfo

from cdc.lines import toml_text
from cdc.log.state import StateReader
from cdc.records.position import Lsn
from cdc.records.state import Phase, Progress, TableState
from cdc.records.topics import progress_topic, table_topic
from cdc.settings import Settings, load
from deploy.local.processes import Command, Process, ServerError, environment_with

TomlValue = Any
"""TOML's values: text, numbers, booleans, lists and tables of these."""
TomlSection = Any
"""A table, or a list of tables, as for views."""
_POLL_S: Final = 0.1
_MILLRACE: Final = (sys.executable, "-m", "millrace")
_ROOT: Final = Path(__file__).resolve().parents[2]
_OWN: Final = {"PYTHONPATH": str(_ROOT)}


class Pipeline:
    """One configuration, and the commands that use it."""

    spark: ClassVar[Mapping[str, str]] = {}
    """The [spark] section."""
    command: ClassVar[type[Command]] = Command

    def __init__(
        self,
        folder: Path,
        source: Mapping[str, str],
        kafka: Mapping[str, str],
        *,
        prefix: str,
        search_url: str | None = None,
        capture: Mapping[str, str | int] | None = None,
        sections: Mapping[str, TomlSection] | None = None,
        preset: str = "millrace",
    ) -> None:
        self.folder = folder
        self.config = folder / "millrace.toml"
        self._source = dict(source)
        name = prefix.replace("-", "_")
        own: dict[str, TomlValue] = {
            "source": source,
            "capture": {"topic.prefix": prefix, "slot.name": name, "publication.name": name}
            | dict(capture or {}),
            "kafka": kafka,
            "lakehouse": {"path": str(folder / "lakehouse")},
            "spark": self.spark,
        }
        if search_url is not None:
            own["search"] = {"url": search_url, "index.prefix": f"{prefix}."}
        for section, values in (sections or {}).items():
            is_one = isinstance(values, Mapping)
            own[section] = {**own.get(section, {}), **values} if is_one else values
        self.config.write_text(_toml(own, preset), encoding="utf-8")
        self.config.chmod(0o600)
        self.settings: Settings = load(self.config)

    def start(self, environment: Mapping[str, str] | None = None, *, keep: bool = False) -> Process:
        """Start the daemon. Its log is ``daemon.log`` in the folder."""
        return self._command("run", environment, log="daemon.log").start(keep=keep)

    def follow(self, *options: str, sink: str = "lakehouse") -> Process:
        """Start continuous merges. Their log is ``merge.log``."""
        return self._command("merge", None, sink, "--follow", *options, log="merge.log").start()

    def _command(
        self, name: str, environment: Mapping[str, str] | None, *options: str, log: str
    ) -> Command:
        words = (*_MILLRACE, name, *options, "--config", str(self.config))
        own = {**_OWN, **(environment or {})}
        return self.command(f"millrace {name}", words, self.folder / log, environment=own)

    def catch_up(self, *, timeout_s: float = 120) -> Process:
        """Start the daemon, and wait until it streams, and the log has the source's current data.

        An earlier daemon may have logged all of it. A signal interrupts a daemon that starts.
        """
        before = self._streams()
        daemon = self.start()
        self.wait_until_logged(self.wal_end(), daemon, timeout_s=timeout_s)
        daemon.wait_until(lambda: self._streams() > before)
        return daemon

    def _streams(self) -> int:
        """Return how often a daemon has begun to stream."""
        log = self.folder / "daemon.log"
        return log.read_text(errors="replace").count("] streaming ") if log.exists() else 0

    def millrace(
        self, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = 900
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as cron would."""
        return subprocess.run(
            [*_MILLRACE, *words, "--config", str(self.config)],
            cwd=_ROOT,
            env=environment_with({**_OWN, **(environment or {})}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @cached_property
    def states(self) -> StateReader:
        """Return a reader of the state topics."""
        return StateReader(self.settings.kafka)

    def progress(self) -> Progress | None:
        """Return the last progress record."""
        capture = self.settings.capture
        topic = progress_topic(capture.topic_prefix)
        return self.states.last_progress(topic, capture.slot_name)

    def tables(self) -> list[TableState]:
        """Return the states of all tables in the log."""
        topic = table_topic(self.settings.capture.topic_prefix)
        return self.states.read_tables(topic)

    def wal_end(self) -> Lsn:
        """Return the current end of the source's WAL."""
        with psycopg.connect(make_conninfo(**self._source), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None  # noqa: S101 (a function call returns a row)
        return Lsn.parse(row[0])

    def wait_until_logged(self, lsn: Lsn, daemon: Process, *, timeout_s: float = 120) -> Progress:
        """Wait for complete snapshots and everything before ``lsn`` in the log, or ServerError."""
        deadline = time.monotonic() + timeout_s
        while True:
            progress = self.progress()
            streaming = progress is not None and progress.phase is Phase.STREAMING
            has_flushed = progress is not None and streaming and progress.flush_lsn >= lsn
            if progress and has_flushed and not any(state.initial for state in self.tables()):
                return progress
            if not daemon.running or time.monotonic() > deadline:
                end = progress.flush_lsn if progress else "nothing"
                raise ServerError(
                    f"the log ends at {end}, not at {lsn}. {daemon.command.log_end()}"
                )
            time.sleep(_POLL_S)


def _toml(sections: Mapping[str, TomlSection], preset: str) -> str:
    lines = [f'preset = "{preset}"', ""]
    for section, given in sections.items():
        is_one = isinstance(given, Mapping)
        for values in (given,) if is_one else given:
            pairs = (f"{_toml_text(key)} = {_toml_text(v)}" for key, v in values.items())
            lines += [f"[{section}]" if is_one else f"[[{section}]]", *pairs, ""]
    return "\n".join(lines)


def _toml_text(value: TomlValue) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_toml_text(key)} = {_toml_text(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_text, value))}]"
    return toml_text(value) if isinstance(value, str) else json.dumps(value)
