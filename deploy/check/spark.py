"""Spark, Java and jars of this machine → whether they match. Starts no JVM of Spark's."""

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from cdc.errors import ConfigError, SparkMissingError
from cdc.settings import Settings
from deploy.check.result import Area, CheckResult, Unanswered
from deploy.check.scene import Scene
from sinks.spark import jars
from sinks.spark.maven import is_right
from sinks.spark.session import JAR_SETTINGS, OWN_DRIVER, require_java, too_little

JAVA_MIN: Final = 17
MEMORY_MIN: Final = 450 << 20
"""Spark's own minimum (UnifiedMemoryManager): 1.5 times its reserve."""
_JAVA_S: Final = 6.0
_JAVA_MODULE: Final = re.compile(r"^java\.base@(\d+)([\d.]*)", re.MULTILINE)
_VECTORS: Final = "jdk.incubator.vector"
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1 << 20, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
"""A number without a unit is in MiB."""
_OF_PYTHON: Final = {"pyspark": "spark-sql-kafka-0-10_2.13", "delta-spark": "delta-spark_2.13"}
"""Package → the jar that must have the same version."""


def check_spark(scene: Scene) -> Iterator[CheckResult]:
    """Check what merges start."""
    settings = scene.settings
    if settings.lakehouse is None and settings.search is None:
        return
    part = Area("spark")
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        yield part.unknown(
            "everything",
            "PySpark isn't installed",
            "run `millrace check` where merges run, or install millrace[spark]",
        )
        return
    yield part.ok("PySpark", installed)
    yield part.tried("Java", _java, f"Java {JAVA_MIN} or newer, with {_VECTORS}")
    yield part.tried("jars", partial(_jars, settings))
    yield part.tried("versions", partial(_versions, settings), "packages and jars of one version")
    yield part.tried("spark.driver.memory", partial(_memory, settings), "450 MiB or more")


def _java() -> str | Unanswered:
    java = require_java()
    try:
        listed = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, timeout=_JAVA_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Unanswered(f"{java} didn't answer within {_JAVA_S:.0f} s")
    except OSError as error:
        raise SparkMissingError(
            f"java can't start: {error.strerror}", where=java, remedy="install Java 17 or newer"
        ) from None
    module = _JAVA_MODULE.search(listed.stdout)
    if module is None or int(module[1]) < JAVA_MIN:
        raise SparkMissingError(
            f"Java {module[1] if module else '8 or older'} is installed; Spark needs {JAVA_MIN}",
            where=java,
            remedy=f"install Java {JAVA_MIN} or newer, and set JAVA_HOME to it",
        )
    if _VECTORS not in listed.stdout:
        raise SparkMissingError(
            f"this Java lacks the module {_VECTORS}, which Spark needs",
            where=java,
            remedy="install a whole JDK or JRE (Debian: openjdk-17-jre-headless)",
        )
    return f"{module[1]}{module[2]} at {java}"


def _jars(settings: Settings) -> str | Unanswered:
    if named := [name for name in JAR_SETTINGS if name in settings.spark]:
        return Unanswered(
            f"{named[0]} in [spark] names other jars",
            "set it to the output of: python -m sinks.spark.jars",
        )
    jars.driver_jars()
    folder, listed = jars.jars_folder(), jars.manifest().jars
    if wrong := [jar.name for jar in listed if not is_right(folder, jar)]:
        raise SparkMissingError(
            f"jars are missing or differ from this release's: {', '.join(wrong)}",
            where=str(folder),
            remedy="make setup" if jars.is_clone() else "millrace jars --repository URL",
        )
    return f"all {len(listed)} in {folder} are this release's"


def _versions(settings: Settings) -> str | Unanswered:
    """Check that Python's packages and a release's jars have the same version."""
    if any(name in settings.spark for name in JAR_SETTINGS):
        return Unanswered("the jars aren't this release's")
    of_jars = {jar.artifact: jar.version for jar in jars.manifest().jars}
    words = []
    for package, artifact in _OF_PYTHON.items():
        has, needed = version(package), of_jars[artifact]
        if has != needed:
            raise SparkMissingError(
                f"{package} is version {has}, but the jar {artifact} has version {needed}",
                where="this installation",
                remedy=f"install {package}=={needed}",
            )
        words.append(f"{package} {has}")
    return ", ".join(words)


def _memory(settings: Settings) -> str:
    name = "spark.driver.memory"
    text = settings.spark.get(name, OWN_DRIVER[name])
    parsed = _SIZE.fullmatch(text.strip())
    if parsed is None:
        raise ConfigError(f"{name} = {text} isn't a size", where="[spark]", remedy="such as 2g")
    if int(parsed[1]) * _UNITS[parsed[2].lower()] < MEMORY_MIN:
        raise too_little(text)
    return text
