"""A component's name -> its jars and the Java that runs them, as `make setup` left them."""

import os
import shutil
from pathlib import Path
from typing import Final, Literal

Component = Literal["kafka", "spark", "opensearch", "registry"]

REPOSITORY: Final = Path(__file__).resolve().parents[2]


class SetupError(RuntimeError):
    """Something that `make setup` provides isn't there."""


def jar_folder(component: Component) -> Path:
    """Return the folder with a component's jars: MILLRACE_JARS or .cache/jars, one folder each."""
    root = Path(os.environ.get("MILLRACE_JARS") or REPOSITORY / ".cache" / "jars")
    folder = root / component
    if not any(folder.glob("*.jar")):
        target = "registry" if component == "registry" else "setup"
        raise SetupError(f"no jars of {component} in {folder}: run make {target}")
    return folder


def classpath(component: Component) -> str:
    """Return a component's class path; Java itself expands the star."""
    return str(jar_folder(component) / "*")


def java() -> str:
    """Return the Java launcher: the one of JAVA_HOME, or else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise SetupError(
            "no java in JAVA_HOME or on PATH: run make setup, which says what to install"
        )
    return found
