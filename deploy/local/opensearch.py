"""A folder -> a running OpenSearch node on a loopback port, without TLS and users.

Of release 2.19, or of 3, which the tests run against, too.
"""

import http.client
import signal
from pathlib import Path
from typing import Final, Literal, Self

from deploy.local.jars import classpath, java, java_21
from deploy.local.processes import Command, Process, reserve_port

Release = Literal["2", "3"]
RELEASES: Final[tuple[Release, ...]] = ("2", "3")
# Half the start-up time, for who indexes little.
_BRIEF: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LASTING: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""As OpenSearch's own scripts give it."""


class OpenSearch:
    """One OpenSearch node; its port and its data outlive stop, kill and start."""

    name = "OpenSearch"
    stop_signal = signal.SIGTERM

    def __init__(
        self, base_dir: Path, *, release: Release = "2", keep: bool = False, lasting: bool = False
    ) -> None:
        self.port = reserve_port()
        self.release: Release = release
        self.process: Process | None = None
        self._transport_port = reserve_port()
        self._folder = base_dir / ("opensearch3" if release == "3" else "opensearch")
        self._keep = keep
        self._jvm = _LASTING if lasting else _BRIEF

    @property
    def url(self) -> str:
        """Where its REST interface answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start the node and wait until its cluster is usable."""
        self._folder.mkdir(parents=True, exist_ok=True)
        is_3 = self.release == "3"
        words = (
            *(java_21() if is_3 else java(), *self._jvm),
            "-Djava.locale.providers=SPI,CLDR",  # the small runtime's own lack Thai
            *("-cp", classpath("opensearch3" if is_3 else "opensearch"), "OsNode"),
            *(str(self._folder / "node"), str(self.port), str(self._transport_port)),
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
