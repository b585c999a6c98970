"""docs/guides/install.md, followed to the letter below a folder → a daemon and jobs.

They run as another user, which the test creates and removes.
"""

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from cdc.errors import ExitCode
from deploy.local import packages
from deploy.local.jars import REPOSITORY
from deploy.local.kafka import Kafka
from deploy.local.processes import Account, Command, Process, run_folder
from tests.fixtures.installed import SITE, USER, Installation, python_for
from tests.fixtures.readers import query_builder
from tests.fixtures.source import run
from tests.fixtures.spark import SPARK

# There is one user of this name on a machine, so one process makes it.
pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.xdist_group("jvms")]
Configure = Callable[[], None]
JARS: Final = Path(os.environ.get("MILLRACE_JARS") or REPOSITORY / ".cache" / "jars")
NEEDS_SERVERS: Final = ("sudoedit", "sudo systemctl", "sudo -u millrace ")
"""What the page has people do once there is something to edit, or to run."""
PASSWORD: Final = "MILLRACE_PASSWORD"
ENVIRONMENT: Final = "sudo python3 -m venv "
PIP: Final = "sudo /opt/millrace/bin/pip "
JARS_LINE: Final = "sudo /opt/millrace/bin/millrace jars "
"""Needs a Maven repository: the jobs take the jars that are there."""
CONFIG: Final = """
[source]
host = "{host}"
port = {port}
dbname = "{dbname}"
user = "{user}"
password = "${{env:MILLRACE_PASSWORD}}"

[capture]
topic.prefix = "{prefix}"
slot.name = "{slot}"
publication.name = "{slot}"

[kafka]
bootstrap.servers = "{kafka}"

[lakehouse]
path = "{home}/{prefix}"

[spark]
{spark}
"""


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.proof)])
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """Install below a folder, and take folder and user away at the end.

    Once with what runs the tests, and once with what `make dist` builds.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can make the user that the page names")
    if any(entry.pw_name == USER for entry in pwd.getpwall()):
        pytest.skip(f"this machine has a user {USER} of its own")
    folder = run_folder("millrace-installed-")
    try:
        other = Account("nobody", 65534, 65534)
        if (python := python_for(other)) is None or not all(map(other.reaches, (SITE, JARS))):
            pytest.skip("Python, or what this environment has, is closed to other users")
        made = Installation(folder, python)
        for path in ("/opt", "/etc/systemd/system", "/etc/cron.d", "/var/lib"):
            Path(f"{folder}{path}").mkdir(parents=True)
        skipped = dict.fromkeys([JARS_LINE, *NEEDS_SERVERS], "")
        if request.param:
            (folder / "dist").mkdir()
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            packages.build({version: Path(sys.executable)}, folder / "dist")
            made.run_page(
                {**skipped, ENVIRONMENT: f"{python} -m venv {made.path('/opt/millrace')}"}
            )
        else:
            made.run_page({**skipped, ENVIRONMENT: made.link(), PIP: ""})
        yield made
    finally:
        # Its home is below the folder: a user whose home is elsewhere is somebody else's.
        if any(e.pw_name == USER and folder in Path(e.pw_dir).parents for e in pwd.getpwall()):
            subprocess.run(["userdel", "--force", USER], check=False, capture_output=True)
        shutil.rmtree(folder)


@pytest.fixture
def configure(
    installation: Installation, database: dict[str, str], kafka: Kafka, topic_prefix: str
) -> Configure:
    """Edit the two files, as the page says."""

    def edit() -> None:
        slot = topic_prefix.replace("-", "_")
        installation.config.write_text(
            CONFIG.format(
                **database,
                prefix=topic_prefix,
                slot=slot,
                kafka=kafka.bootstrap_servers,
                home=installation.home,
                spark="\n".join(f'"{name}" = "{value}"' for name, value in SPARK.items()),
            )
        )
        jars = f"MILLRACE_JARS='{JARS}'\n"
        installation.environment.write_text(f"{PASSWORD}='{database['password']}'\n{jars}")

    return edit


@pytest.fixture
def daemon(installation: Installation, server_folder: Path) -> Iterator[Callable[[], Process]]:
    """Start the daemon as systemd's unit does."""
    started: list[Process] = []

    def start() -> Process:
        words, variables = installation.service("millrace.service")
        assigned = [f"{name}={value}" for name, value in variables.items()]
        every = ("env", "-i", *assigned, *words)
        entry = pwd.getpwnam(USER)
        user = Account(USER, entry.pw_uid, entry.pw_gid)
        process = Command("millrace.service", every, server_folder / "daemon.log", user).start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def test_what_the_page_installs_is_open_to_the_user_and_closed_to_others(
    installation: Installation,
) -> None:
    entry = pwd.getpwnam(USER)
    for path in (installation.config, installation.environment):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, entry.pw_gid, 0o640)
    assert installation.home.stat().st_uid == entry.pw_uid
    stranger = installation.as_user(["cat", str(installation.config)], {}, "nobody")
    assert "Permission denied" in stranger.stderr


def test_a_unit_is_one_for_systemd(installation: Installation) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze isn't installed")
    units = map(str, installation.units())
    ended = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_job_names_the_file_and_the_key_that_it_lacks(
    installation: Installation, configure: Configure
) -> None:
    configure()
    merge, _ = installation.cron_jobs()
    environment = installation.environment
    environment.chmod(0o600)
    closed = installation.under_cron(merge)
    assert closed.returncode == ExitCode.CONFIG
    assert f"user {USER} can't read {environment}" in closed.stdout
    assert f"chgrp {USER} {environment} && chmod 640 {environment}" in closed.stdout

    environment.chmod(0o640)
    environment.write_text("")
    unset = installation.under_cron(merge)
    assert unset.returncode == ExitCode.CONFIG
    for word in (f"${{env:{PASSWORD}}}", "[source] password", str(installation.config)):
        assert word in unset.stdout


@pytest.mark.proof  # a minute and more, beside other tests on two cores
@pytest.mark.spark
def test_the_daemon_and_the_jobs_run_as_the_page_has_them(
    installation: Installation,
    configure: Configure,
    database: dict[str, str],
    topic_prefix: str,
    daemon: Callable[[], Process],
) -> None:
    run(database, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1), (2)")
    configure()
    merge, _ = installation.cron_jobs()
    early = installation.under_cron(merge)
    assert early.returncode == ExitCode.LOG_MISSING, early.stdout + early.stderr
    by_root = subprocess.run(
        [*installation.service("millrace-merge.service")[0]],
        env=installation.service("millrace-merge.service")[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert by_root.returncode == ExitCode.CONFIG
    assert f"runuser -u {USER} -- millrace" in by_root.stdout

    service = daemon()
    status, by_hand = installation.by_hand()
    deadline = time.monotonic() + 60
    while "complete" not in (said := installation.as_user(status, {}).stdout):
        assert service.running, service.command.log.read_text()
        assert time.monotonic() < deadline, said
    table = installation.home / topic_prefix / "public" / "item"
    merged = installation.under_cron(merge)
    assert (merged.returncode, merged.stdout, merged.stderr) == (0, "", "")
    assert sorted(row["id"] for row in query_builder(str(table))) == [1, 2]
    assert table.owner() == USER
    assert (installation.home / "tmp" / f"millrace-{table.stat().st_uid}").is_dir()
    nothing = installation.as_user(by_hand, {})
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "")
    service.stop(timeout_s=60)
    assert service.exit_code == ExitCode.OK


@pytest.mark.proof
@pytest.mark.spark
def test_compaction_runs_as_the_page_has_it(
    installation: Installation,
    configure: Configure,
    database: dict[str, str],
    topic_prefix: str,
    daemon: Callable[[], Process],
) -> None:
    run(database, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1), (2)")
    configure()
    merge, compact = installation.cron_jobs()
    service = daemon()
    table = installation.home / topic_prefix / "public" / "item"
    deadline = time.monotonic() + 120
    while not table.exists():
        assert time.monotonic() < deadline
        installation.under_cron(merge)
    service.stop(timeout_s=60)
    compacted = installation.under_cron(compact)
    assert (compacted.returncode, compacted.stdout, compacted.stderr) == (0, "", "")
