"""The jars that a driver's JVM loads beside Spark → where they lie: those of others, and our own.

Ours is in this installation. The others are in one folder, whose name tells which list of them it
has: it is there once it is whole, and never changes, so nothing is taken from under a JVM. `make
setup` and `millrace jars` make it, by sinks/jvm/jars.toml. ``python -m sinks.spark.jars`` prints
all of them for spark-submit.
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
"""Spark expressions of our own."""
VARIABLE: Final = "MILLRACE_JARS"
"""Where they lie, where that isn't the installation itself."""
REPOSITORY: Final = "MILLRACE_MAVEN_REPOSITORY"
"""The Maven repository that has them, where no option names it."""
COMPLETE: Final = ".complete"
"""What a folder has that is whole, for make."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A file of a Maven repository."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """What the file is called."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Where a Maven repository has it."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A list of jars, and the name of the folder that has them."""

    folder: str
    jars: tuple[Jar, ...]


@cache
def manifest() -> Manifest:
    """Read what this release needs."""
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
    """Return the folder for what is fetched and made: a clone's or an installation's own."""
    return _HOME / ".cache" if is_clone() else Path(sys.prefix) / "share" / "millrace"


def jars_root() -> Path:
    """Return the folder of folders of jars, which several installations may share."""
    return Path(os.environ.get(VARIABLE) or data_folder() / "jars")


def jars_folder() -> Path:
    """Return the folder that has, or is to have, the jars of others."""
    return jars_root() / manifest().folder


def class_archive() -> Path:
    """Return where an archive of the classes may be that a JVM loads of these jars.

    It speaks of jars by their places and times: Java sees whether it fits, and it is this
    installation's own.
    """
    return data_folder() / "classes.jsa"


def driver_jars() -> list[Path]:
    """Return all jars, ours among them; raises SparkMissingError unless they are there."""
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
    """Return the class path of all jars; Java itself expands the star."""
    *_, own = jars = driver_jars()
    return f"{jars[0].parent / '*'}{os.pathsep}{own}"


if __name__ == "__main__":
    sys.stdout.write(",".join(map(str, driver_jars())) + "\n")
