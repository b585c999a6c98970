"""The jars that a driver's JVM loads in addition to Spark → their paths: other projects' and ours.

Ours is in this installation. The others are in one folder, whose name identifies their list. It
appears once it is complete, and never changes, so a running JVM loses nothing. `make setup` and
`millrace jars` create it, from sinks/jvm/jars.toml. ``python -m sinks.spark.jars`` prints all of
them for spark-submit.
"""

import os
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from cdc.errors import SparkMissingError

_HOME: Final = Path(__file__).resolve().parents[2]
_JVM: Final = _HOME / "sinks" / "jvm"
OWN: Final = _JVM / "millrace-sinks.jar"
"""Our own Spark expressions."""
VARIABLE: Final = "MILLRACE_JARS"
"""The jars' folder, if it isn't the installation's own."""
REPOSITORY: Final = "MILLRACE_MAVEN_REPOSITORY"
"""The Maven repository of the jars, if no option names it."""
COMPLETE: Final = ".complete"
"""A file that marks a complete folder, for make."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A file of a Maven repository."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """Return the file's name."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Return its path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A list of jars, and the name of their folder."""

    folder: str
    jars: tuple[Jar, ...]


@cache
def manifest() -> Manifest:
    """Read the list of this release."""
    content = tomllib.loads((_JVM / "jars.toml").read_text("utf-8"))
    jars = [
        Jar(*jar["coordinates"].split(":"), sha256=jar["sha256"])  # type: ignore[misc]
        for jar in content["jar"]
    ]
    return Manifest(content["folder"], tuple(jars))


def is_clone() -> bool:
    """Whether this is a clone, whose `make` fetches jars."""
    return (_HOME / "Makefile").is_file()


def data_folder() -> Path:
    """Return the folder for fetched and created files: a clone's or an installation's own."""
    return _HOME / ".cache" if is_clone() else Path(sys.prefix) / "share" / "millrace"


def jars_root() -> Path:
    """Return the folder of folders of jars, which several installations may share."""
    return Path(os.environ.get(VARIABLE) or data_folder() / "jars")


def jars_folder() -> Path:
    """Return the folder of other projects' jars, which may not exist yet."""
    return jars_root() / manifest().folder


def class_archive() -> Path:
    """Return the path of an archive of the classes that a JVM loads from these jars.

    It contains the jars' paths and times, and Java checks whether it fits. Each installation has
    its own.
    """
    return data_folder() / "classes.jsa"


def driver_jars() -> list[Path]:
    """Return all jars, ours included. Raise SparkMissingError if they are missing."""
    folder = jars_folder()
    if not (jars := sorted(folder.glob("*.jar"))):
        raise SparkMissingError(
            "the jars of Delta Lake and of Spark's Kafka source are missing",
            where=str(folder),
            remedy="run make setup" if is_clone() else "run millrace jars --repository URL",
        )
    if not OWN.exists():
        raise SparkMissingError(
            "this installation was built without Millrace's own jar",
            where=str(OWN),
            remedy=f"make {OWN.relative_to(_HOME)}"
            if is_clone()
            else "install a wheel that make dist builds",
        )
    return [*jars, OWN]


def class_path() -> str:
    """Return the class path of all jars. Java itself expands the star."""
    *_, own = jars = driver_jars()
    return f"{jars[0].parent / '*'}{os.pathsep}{own}"


if __name__ == "__main__":
    sys.stdout.write(",".join(map(str, driver_jars())) + "\n")
