"""The files of `make dist` → environments by its locked requirements, in which each part runs.

Packages come from the index that pip is configured for, and are checked against the locks. The
clone isn't on their path.
"""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local import packages
from deploy.local.jars import jar_folder
from deploy.local.processes import Command, Process, environment_with
from sinks.spark.jars import COMPLETE, manifest
from tests.fixtures.pipeline import RunningPipeline

pytestmark = [
    pytest.mark.proof,
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("installations"),
]
SCHEMA = """
    CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10, 2));
    INSERT INTO item SELECT i, 'name ' || i, i / 7.0 FROM generate_series(1, 1000) i;
"""
NOTHING = {"PATH": "", "PYTHONPATH": "", "JAVA_HOME": "", "MILLRACE_JARS": ""}
"""No program on PATH: no compiler, no Java; and nothing of the clone."""
CRON = NOTHING | {"PATH": "/usr/bin:/bin"}
"""Spark's launcher is a shell script, and looks for Java there."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build what `make dist` does, for this Python alone."""
    folder = tmp_path_factory.mktemp("dist")
    packages.build({f"{sys.version_info[0]}.{sys.version_info[1]}": Path(sys.executable)}, folder)
    (wheel,) = folder.glob("*.whl")
    if sys.platform == "linux":
        assert "manylinux_2_17" in wheel.name, "it runs with glibc 2.17 or newer"
    return folder


class Environment:
    """An environment of its own, with a pip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)

    def program(self, name: str) -> str:
        """Where a program of it is."""
        return str(self.folder / "bin" / name)

    def run(
        self, *words: object, environment: dict[str, str] = NOTHING
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of it to its end, in its folder."""
        program, *rest = map(str, words)
        return subprocess.run(
            [self.program(program), *rest],
            cwd=self.folder,
            env=environment_with(environment),
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, *words: object) -> None:
        """Install without a program on PATH."""
        ended = self.run("pip", "install", "--quiet", *words)
        assert ended.returncode == 0, ended.stderr

    def capture(self, pipeline: RunningPipeline) -> Process:
        """Start its daemon, and wait until the log has what the source has."""
        words = (self.program("millrace"), "run", "--config", str(pipeline.config))
        log = pipeline.folder / "installed.log"
        daemon = Command("installed millrace", words, log, environment=NOTHING).start()
        pipeline.daemons.append(daemon)
        pipeline.wait_until_logged(pipeline.wal_end(), daemon)
        return daemon


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """Serve the jars at hand as a Maven repository has them."""
    for jar in manifest().jars:
        (place := tmp_path / "maven" / jar.path).parent.mkdir(parents=True)
        place.symlink_to(jar_folder("spark") / jar.name)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "maven"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def fill(database: dict[str, str]) -> str:
    """Make a table, and return its sums as CSV."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        row = connection.execute("SELECT count(*), sum(price) FROM item").fetchone()
    assert row is not None
    return f"{row[0]},{row[1]}"


def test_the_daemon_is_installed_by_hashes_and_captures_without_compiler_and_java(
    dist: Path,
    tmp_path: Path,
    database: dict[str, str],
    pipeline: Callable[..., RunningPipeline],
) -> None:
    fill(database)
    environment = Environment(tmp_path / "daemon")
    environment.install("--require-hashes", "-r", dist / "daemon.txt")
    assert not shutil.which("java", path=NOTHING["PATH"])
    made = pipeline()
    daemon = environment.capture(made)
    status = environment.run("millrace", "status", "--config", made.config)
    assert status.returncode == 0, status.stderr
    assert made.stop(daemon) == 0
    assert len(made.log()) == 1000
    merge = environment.run("millrace", "merge", "--config", made.config)
    assert merge.returncode == ExitCode.SPARK_MISSING
    assert "millrace[spark]" in merge.stderr
    listed = environment.run("pip", "list").stdout.lower()
    assert not any(name in listed for name in ("pyspark", "mypy", "pandas", "duckdb", "pytest"))


def test_a_source_distribution_says_that_it_needs_a_compiler(dist: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "uncompiled")
    (sdist,) = dist.glob("*.tar.gz")
    environment.install("--require-hashes", "-r", dist / "build.txt")
    ended = environment.run("pip", "install", "--no-deps", "--no-build-isolation", sdist)
    assert ended.returncode != 0
    output = ended.stdout + ended.stderr
    assert output.count("install a C compiler and Python's headers") == 1
    assert "Traceback" not in output


@pytest.mark.opensearch
@pytest.mark.usefixtures("opensearch")
@pytest.mark.spark
def test_the_jobs_are_installed_by_hashes_fetch_their_jars_and_merge(
    dist: Path,
    tmp_path: Path,
    database: dict[str, str],
    pipeline: Callable[..., RunningPipeline],
    repository: str,
) -> None:
    sums = fill(database)
    environment = Environment(tmp_path / "jobs")
    environment.install("--require-hashes", "-r", dist / "build.txt")
    environment.install("--require-hashes", "--no-build-isolation", "-r", dist / "jobs.txt")
    libraries = "import authlib, delta, fastavro, httpx2, opensearchpy, pyspark"
    assert environment.run("python", "-c", libraries).returncode == 0
    made = pipeline(search=True)
    words = ("--config", made.config)
    made.stop(environment.capture(made))

    without = environment.run("millrace", "merge", "all", *words, environment=CRON)
    assert without.returncode == ExitCode.SPARK_MISSING, without.stderr
    assert "→ millrace jars --repository URL" in without.stdout

    fetched = environment.run("millrace", "jars", "--repository", repository, environment=CRON)
    assert fetched.returncode == 0, fetched.stderr
    folder = environment.folder / "share" / "millrace" / "jars" / manifest().folder
    names = {path.name for path in folder.iterdir()}
    assert names == {COMPLETE, *(jar.name for jar in manifest().jars)}
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir())
    archive = environment.folder / "share" / "millrace" / "classes.jsa"
    assert archive.stat().st_size > 1_000_000

    merged = environment.run("millrace", "merge", "all", *words, environment=CRON)
    assert merged.returncode == 0, merged.stderr
    sql = "SELECT count(*) AS rows, sum(price) AS price FROM public.item"
    query = environment.run("millrace", "query", "-f", "csv", sql, *words, environment=CRON)
    assert query.stdout.splitlines() == ["rows,price", sums], query.stderr
    found = environment.run("millrace", "search", "public.item", "name 7", *words, environment=CRON)
    assert "name 7" in found.stdout, found.stderr
