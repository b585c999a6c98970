"""A folder -> a running OpenSearch 2.19 node on a loopback port, without TLS and users."""

import http.client
import signal
from pathlib import Path
from typing import Final, Self

from deploy.local.jars import classpath, java
from deploy.local.ports import reserve_port
from deploy.local.processes import Command, Process

_NODE_SOURCE: Final = Path(__file__).parent / "jars" / "opensearch" / "OsNode.java"
# Half the start-up time, for who indexes little.
_BRIEF: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LASTING: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""As OpenSearch's own scripts give it."""


class OpenSearch:
    """One OpenSearch node; its port and its data outlive stop, kill and start."""

    name = "OpenSearch"
    stop_signal = signal.SIGTERM

    def __init__(self, base_dir: Path, *, keep: bool = False, lasting: bool = False) -> None:
        self.port = reserve_port()
        self.process: Process | None = None
        self._transport_port = reserve_port()
        self._folder = base_dir / "opensearch"
        self._keep = keep
        self._jvm = _LASTING if lasting else _BRIEF

    @property
    def url(self) -> str:
        """Where its REST interface answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start the node and wait until its cluster is usable."""
        self._folder.mkdir(parents=True, exist_ok=True)
        words = (
            *(java(), *self._jvm),
            *("-cp", classpath("opensearch"), str(_NODE_SOURCE), str(self._folder / "node")),
            *(str(self.port), str(self._transport_port)),
        )
        command = Command(self.name, words, self._folder / "opensearch.log")
        self.process = command.start(keep=self._keep)
        self.process.wait_until(self._answers)
        return self

    def stop(self) -> None:
        """Shut the node down in order."""
        if self.process is not None:
            self.process.stop(self.stop_signal)

    def restart(self) -> None:
        """Stop and start again, on the same port and data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Crash the node by SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def pause(self) -> None:
        """Let the node hang: connections stay open and nobody answers."""
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        """Let a paused node go on."""
        if self.process is not None:
            self.process.resume()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=2s")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
