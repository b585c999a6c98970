"""A folder → a running OpenSearch node on a loopback port, without TLS and users.

Release 2.19, or 3, which the tests also use.
"""

from pathlib import Path
from typing import Final, Literal, Self

from deploy.local.jars import classpath, java, java_21
from deploy.local.processes import Command, Server, answers, reserve_port

Release = Literal["2", "3"]
RELEASES: Final[tuple[Release, ...]] = ("2", "3")
# Half the start-up time, for small indexes.
_BRIEF: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LASTING: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""The values of OpenSearch's own scripts."""


class OpenSearch(Server):
    """One OpenSearch node."""

    name = "OpenSearch"

    def __init__(
        self, base_dir: Path, *, release: Release = "2", keep: bool = False, lasting: bool = False
    ) -> None:
        super().__init__()
        self.port = reserve_port()
        self.release: Release = release
        self._transport_port = reserve_port()
        self._folder = base_dir / ("opensearch3" if release == "3" else "opensearch")
        self._keep = keep
        self._jvm = _LASTING if lasting else _BRIEF

    @property
    def url(self) -> str:
        """Address of its REST interface."""
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

    def _answers(self) -> bool:
        return answers(self.port, "/_cluster/health?wait_for_status=yellow&timeout=2s")
