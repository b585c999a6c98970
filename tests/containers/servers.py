"""The servers of deploy/local, in containers that testcontainers starts.

A test sees no difference: each server has a port of this machine, and can be stopped, killed,
paused and restarted like the native one. Settings reach the official images in the images' own way.
A container is removed when the tests end, even after a failure.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar, Final, Self

from docker.errors import NotFound
from docker.models.containers import Container as EngineContainer
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from deploy.local.kafka import Kafka
from deploy.local.opensearch import OpenSearch
from deploy.local.postgres import Postgres
from deploy.local.processes import Command, Process, Server

IMAGES: Final[Mapping[str, str]] = {
    name: os.environ.get(name) or default
    for name, default in {
        "POSTGRES_IMAGE": "postgres:18",
        "KAFKA_IMAGE": "apache/kafka:4.3.1",
        "OPENSEARCH_IMAGE": "opensearchproject/opensearch:2.19.1",
    }.items()
}
"""Environment variable -> the image; by default those that Docker Hub has."""
_POLL_S: Final = 0.05
_LIFELINE: Final = """
import sys, docker
made = sys.stdin.read().split()
for container in made:
    try:
        docker.from_env().api.remove_container(container, force=True, v=True)
    except docker.errors.APIError:
        pass
"""
"""Removes the containers whose ids it was given, once whoever gave them has ended."""


class Lifeline:
    """A process that outlives this one by a moment, and leaves no container of it."""

    @cached_property
    def _input(self) -> IO[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", _LIFELINE],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        assert child.stdin is not None
        return child.stdin

    def add(self, container: str) -> None:
        """Have a container end with us."""
        self._input.write(f"{container}\n")
        self._input.flush()


_lifeline = Lifeline()


class ContainerChild:
    """A container, as a child process."""

    def __init__(self, container: EngineContainer) -> None:
        self.container = container

    @property
    def pid(self) -> int:
        raise NotImplementedError("a container's processes are the engine's")

    def poll(self) -> int | None:
        self.container.reload()
        state = self.container.attrs["State"]
        return None if state["Running"] or state.get("Paused") else int(state["ExitCode"])

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.container.short_id), timeout or 0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            self.container.kill(signal=signal.Signals(sig).name)


class ContainerProcess(Process):
    """A container that runs: wait for it, pause it, end it."""

    def __init__(self, command: Command, container: EngineContainer) -> None:
        self.container = container
        super().__init__(command, ContainerChild(container), None)

    def stop(self, ask: signal.Signals = signal.SIGTERM, timeout_s: float = 20) -> None:
        self.resume()
        self._child.send_signal(ask)
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    def pause(self) -> None:
        self.container.pause()

    def resume(self) -> None:
        self.container.reload()
        if self.container.status == "paused":
            self.container.unpause()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCommand(Command):
    """An image to run; a container of it keeps its data from one start to the next."""

    words: tuple[str, ...] = ()
    log: Path = Path(os.devnull)
    image: str
    ports: Mapping[int, int] = field(default_factory=dict)
    """In the container -> on this machine's loopback address."""
    mounts: Sequence[tuple[Path, str, str]] = ()
    """Here, in the container, and ``ro`` or ``rw``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """As the engine's client names them."""
    containers: list[DockerContainer] = field(default_factory=list)

    def start(self, *, keep: bool = False) -> ContainerProcess:
        assert not keep, "a container ends with the tests"
        if self.containers:
            container = self.containers[0].get_wrapped_container()
            container.start()
        else:
            container = self._make()
        return ContainerProcess(self, container)

    def _make(self) -> EngineContainer:
        testcontainers_config.ryuk_disabled = True  # the lifeline needs no image and no privilege
        made = DockerContainer(self.image, env=dict(self.environment))
        made.with_kwargs(**self.options)
        for here, there, mode in self.mounts:
            made.with_volume_mapping(str(here), there, mode)
        if self.words:
            made.with_command(list(self.words))
        ports: Any = made.ports  # which the engine's client takes with an address, too
        ports |= {f"{inner}/tcp": ("127.0.0.1", outer) for inner, outer in self.ports.items()}
        self.containers.append(made)
        made.start()
        _lifeline.add(made.get_container_id())
        return made.get_wrapped_container()

    def remove(self) -> None:
        """Remove the container, with its data."""
        while self.containers:
            with suppress(NotFound):
                self.containers.pop().stop()

    def log_end(self) -> str:
        logs = self.containers[0].get_wrapped_container().logs(tail=20).decode(errors="replace")
        return f"The end of the container's log:\n{logs}"


class InContainer(Server):
    """A server whose process is a container."""

    _container: ContainerCommand
    _made: ClassVar[list[ContainerCommand]] = []

    def start(self) -> Self:
        """Start it, the first time with making it, and wait until it answers."""
        self._made.append(self._container)
        self.process = self._container.start()
        self.process.wait_until(self._answers)
        return self

    @classmethod
    def remove_all(cls) -> None:
        """Remove the containers of all servers, with their data."""
        while cls._made:
            cls._made.pop().remove()


class ContainerPostgres(InContainer, Postgres):
    """PostgreSQL's image."""

    def __init__(self, base_dir: Path, **options: Any) -> None:
        super().__init__(base_dir, **options)
        settings = {**self.settings, "listen_addresses": "*"}
        del settings["unix_socket_directories"]  # its entrypoint makes databases through a socket
        self._container = ContainerCommand(
            name=self.name,
            image=IMAGES["POSTGRES_IMAGE"],
            ports={5432: self.port},
            environment={
                "POSTGRES_PASSWORD": self._password,
                "POSTGRES_INITDB_ARGS": "--no-sync --encoding=UTF8 --locale=C",
            },
            words=("postgres", *(w for k, v in settings.items() for w in ("-c", f"{k}={v}"))),
        )


class ContainerKafka(InContainer, Kafka):
    """Kafka's image: one broker."""

    def __init__(self, base_dir: Path, **options: Any) -> None:
        super().__init__(base_dir, **options)
        properties = self._properties() | {"log.dirs": "/tmp/kraft-combined-logs"}  # noqa: S108 (its own /tmp)
        properties["listeners"] = properties["listeners"].replace("127.0.0.1", "0.0.0.0")  # noqa: S104
        self._container = ContainerCommand(
            name=self.name,
            image=IMAGES["KAFKA_IMAGE"],
            ports={port: port for port in (self.port, self._ports["INTERNAL"])},
            environment={
                "CLUSTER_ID": self._cluster_id,
                "KAFKA_HEAP_OPTS": " ".join(self._jvm),
                **{f"KAFKA_{k.upper().replace('.', '_')}": v for k, v in properties.items()},
            },
        )


class ContainerOpenSearch(InContainer, OpenSearch):
    """OpenSearch's image, without its security plugin."""

    def __init__(self, base_dir: Path, **options: Any) -> None:
        super().__init__(base_dir, **options)
        self._container = ContainerCommand(
            name=self.name,
            image=IMAGES["OPENSEARCH_IMAGE"],
            ports={9200: self.port},
            environment={
                "discovery.type": "single-node",
                "cluster.routing.allocation.disk.threshold_enabled": "false",
                "DISABLE_SECURITY_PLUGIN": "true",
                "DISABLE_INSTALL_DEMO_CONFIG": "true",
                "OPENSEARCH_JAVA_OPTS": " ".join(self._jvm),
            },
        )
