"""A folder -> a running Apicurio registry 2.6 on a loopback port, with Confluent's interface.

It keeps everything in memory: what was registered is gone once it stops.
"""

import http.client
import signal
from pathlib import Path
from typing import Final, Self

from deploy.local.jars import jar_folder, java
from deploy.local.processes import Command, Process, reserve_port

_PATH: Final = "/apis/ccompat/v7"


class SchemaRegistry:
    """One registry; its port outlives stop and start, its schemas don't."""

    name = "Apicurio"
    stop_signal = signal.SIGTERM

    def __init__(self, base_dir: Path) -> None:
        self.port = reserve_port()
        self.process: Process | None = None
        self._folder = base_dir / "registry"

    @property
    def url(self) -> str:
        """What ``schema.registry.url`` is set to."""
        return f"http://127.0.0.1:{self.port}{_PATH}"

    def start(self) -> Self:
        """Start the registry and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (jar,) = jar_folder("registry").glob("apicurio-registry-app-*-runner.jar")
        words = (
            *(java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self.port}",
            *("-jar", str(jar)),
        )
        self.process = Command(self.name, words, self._folder / "registry.log").start()
        self.process.wait_until(self._answers)
        return self

    def stop(self) -> None:
        """Shut the registry down in order."""
        if self.process is not None:
            self.process.stop(self.stop_signal)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", f"{_PATH}/subjects")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
