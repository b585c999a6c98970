"""The locked requirements and Spark's jars → NOTICE: other projects' code in an installation.

Licences of Python packages come from their metadata, in this environment. The tables here complete
it. https://packaging.python.org/en/latest/specifications/core-metadata/
"""

import re
import sys
from importlib.metadata import metadata
from typing import Final

from packaging.requirements import Requirement

from deploy.local.jars import REPOSITORY
from sinks.spark.jars import manifest

NOTICE: Final = REPOSITORY / "NOTICE"
LINUX: Final = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
BUNDLED: Final = {
    "confluent-kafka": {
        "librdkafka": "BSD-2-Clause",
        "openssl": "Apache-2.0",
        "curl": "curl",
        "lz4": "BSD-2-Clause",
        "zstd": "BSD-3-Clause",
        "snappy": "BSD-3-Clause",
        "zlib": "Zlib",
    },
    "cryptography": {"openssl": "Apache-2.0"},
    "grpcio": {
        "boringssl": "Apache-2.0",
        "abseil": "Apache-2.0",
        "c-ares": "MIT",
        "re2": "BSD-3-Clause",
        "zlib": "Zlib",
    },
    "psycopg-binary": {
        "libpq": "PostgreSQL",
        "libssl": "Apache-2.0 (OpenSSL)",
        "libcrypto": "Apache-2.0 (OpenSSL)",
        "libldap": "OLDAP-2.8",
        "liblber": "OLDAP-2.8",
        "libsasl2": "BSD-4-Clause-UC and others (Cyrus SASL)",
        "libgssapi_krb5": "MIT (Kerberos)",
        "libkrb5": "MIT (Kerberos)",
        "libkrb5support": "MIT (Kerberos)",
        "libk5crypto": "MIT (Kerberos)",
        "libcom_err": "MIT (e2fsprogs)",
        "libkeyutils": "LGPL-2.1-or-later",
        "libcrypt": "LGPL-2.1-or-later",
        "libpcre": "BSD-3-Clause",
        "libselinux": "public domain",
    },
    "pyspark": {
        "jars": "most are Apache-2.0; pyspark/licenses has the other licences",
    },
}
"""Package → other projects' code in its wheel, and the licence, which metadata lacks."""
_SPDX: Final = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
}
"""Texts in older metadata → SPDX, from the packages' own texts."""
_OF_JARS: Final = dict.fromkeys(
    ("io.delta", "io.unitycatalog", "org.apache.commons", "org.apache.kafka", "org.apache.spark"),
    "Apache-2.0",
)
"""Group → the licence in the jars' poms."""
_HEAD: Final = """\
Millrace
Copyright 2026 The Millrace authors

Millrace is licensed under the Apache License, Version 2.0: LICENSE has its text. A wheel has
Millrace's own code, and in its compiled part what Cython (Apache-2.0) generates. Nothing else is
in it.

An installation and an image have what follows beside Millrace. Each of it is under its own
licence, whose text comes with the package or the jar. `make notice` writes these lists.
"""
_IMAGES: Final = """\

Images of deploy/containers, beside these: their base image's Debian packages, whose licences are
in /usr/share/doc/*/copyright; Python (PSF-2.0); the image of the jobs also OpenJDK
(GPL-2.0-only WITH Classpath-exception-2.0).
"""


def requirements(name: str) -> list[str]:
    """Return the packages that a list of locked requirements installs on Linux."""
    text = (REPOSITORY / "deploy" / "requirements" / f"{name}.txt").read_text("utf-8")
    pins = [Requirement(line.rstrip(" \\")) for line in text.splitlines() if re.match(r"\w", line)]
    return [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(dict(LINUX))]


def licence(package: str) -> str:
    """Return a package's licence in SPDX. Raise KeyError if it is unknown."""
    fields = metadata(package).json
    if expression := fields.get("license_expression"):
        return str(expression)
    prefix = "License :: OSI Approved :: "
    classifiers = [line for line in fields.get("classifier", ()) if line.startswith(prefix)]
    named = " OR ".join(line.removeprefix(prefix) for line in classifiers)
    text = str(fields.get("license", "")).strip() or named
    return _SPDX[text] if " " in text or text in _SPDX else text


def render() -> str:
    """Return the whole file."""
    jobs, daemon = requirements("jobs"), set(requirements("daemon"))
    width = max(map(len, jobs)) + 2
    lines = [f"  {name:{width}}{licence(name)}" for name in jobs if name in daemon]
    text = f"{_HEAD}\nPython packages (deploy/requirements/daemon.txt):\n" + "\n".join(lines)
    lines = [f"  {name:{width}}{licence(name)}" for name in jobs if name not in daemon]
    text += "\n\nand those of the jobs (deploy/requirements/jobs.txt):\n" + "\n".join(lines)
    text += "\n\nLibraries in these packages:\n"
    for name, parts in BUNDLED.items():
        text += f"  {name}\n" + "".join(f"    {part}: {parts[part]}\n" for part in parts)
    text += "\nJars that `millrace jars` fetches; their META-INF lists their contents:\n"
    for jar in manifest().jars:
        text += f"  {jar.group}:{jar.artifact}  {_OF_JARS[jar.group]}\n"
    return text + _IMAGES


def main() -> int:
    """Write it."""
    NOTICE.write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
