"""Spark's pom.xml and the jars that `make setup` has fetched → sinks/jvm/jars.toml."""

import sys
from hashlib import sha256
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from deploy.local.jars import REPOSITORY, folder_name, jar_folder

POM: Final = REPOSITORY / "deploy" / "local" / "jars" / "spark" / "pom.xml"
MANIFEST: Final = REPOSITORY / "sinks" / "jvm" / "jars.toml"
_HEAD: Final = """\
# Made from deploy/local/jars/spark/pom.xml and the jars that Maven has checked: make manifest.
"""


def coordinates() -> list[str]:
    """Return group:artifact:version of each jar in the pom."""
    fields = ("groupId", "artifactId", "version")
    dependencies = ET.parse(POM).iterfind(".//{*}dependency")  # noqa: S314 (a file of ours)
    return [":".join(each.findtext(f"{{*}}{name}", "") for name in fields) for each in dependencies]


def render(folder: Path) -> str:
    """Return the manifest of the jars in a folder."""
    text = f'{_HEAD}folder = "{folder_name("spark")}"\n'
    for jar in coordinates():
        _, artifact, version = jar.split(":")
        digest = sha256((folder / f"{artifact}-{version}.jar").read_bytes()).hexdigest()
        text += f'\n[[jar]]\ncoordinates = "{jar}"\nsha256 = "{digest}"\n'
    return text


def main() -> int:
    """Write it."""
    MANIFEST.write_text(render(jar_folder("spark")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
