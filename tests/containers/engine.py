"""This machine -> the container engine that answers here, or the reason why none does."""

import os
from functools import cache
from pathlib import Path
from typing import Final

import docker
from docker.errors import APIError, BuildError, DockerException, ImageNotFound

ROOT: Final = Path(__file__).parents[2]
_RUNTIME: Final = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
SOCKETS: Final = (
    "/var/run/docker.sock",
    f"{_RUNTIME}/docker.sock",
    str(Path.home() / ".docker/run/docker.sock"),
    "/run/podman/podman.sock",
    f"{_RUNTIME}/podman/podman.sock",
)
"""Where Docker and Podman listen, as root and as a user."""
_ANSWER_TIMEOUT_S: Final = 10
NONE_ANSWERS: Final = (
    "no container engine answers at DOCKER_HOST or the usual sockets. Install Docker Engine, or "
    "Podman and start its socket (systemctl --user start podman.socket)"
)


@cache
def engine() -> str | None:
    """The address of the engine, which DOCKER_HOST names from now on; nothing where none answers.

    DOCKER_HOST alone is asked where it is set.
    """
    named = os.environ.get("DOCKER_HOST")
    addresses = [named] if named else [f"unix://{path}" for path in SOCKETS if Path(path).exists()]
    for address in addresses:
        try:
            docker.DockerClient(base_url=address, timeout=_ANSWER_TIMEOUT_S).ping()
        except (DockerException, OSError):
            continue
        os.environ["DOCKER_HOST"] = address
        return address
    return None


@cache
def client() -> docker.DockerClient:
    """A client of the engine."""
    return docker.DockerClient(base_url=engine(), timeout=600)


def build(tag: str, dockerfile: str, target: str | None = None) -> str:
    """Build an image from the repository, where it has changed; returns its id."""
    try:
        image, _ = client().images.build(
            path=str(ROOT),
            dockerfile=dockerfile,
            target=target,
            tag=tag,
            network_mode="host",
            rm=True,
        )
    except BuildError as error:
        lines = [str(line.get("stream", line)) for line in error.build_log]
        raise AssertionError("".join([*lines[-40:], str(error)])) from None
    return str(image.id)


@cache
def lacks(image: str) -> str | None:
    """Why an image is neither here nor comes from its registry; nothing where it is here now."""
    try:
        client().images.get(image)
    except ImageNotFound:
        try:
            client().images.pull(*image.rsplit(":", 1))
        except (APIError, OSError) as error:
            return f"image {image} isn't here and can't be pulled: {error}"
    return None
