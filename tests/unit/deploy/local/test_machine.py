"""Ports, accounts and certificates of the machine → the servers' ones."""

import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import jars
from deploy.local.certificates import Certificates
from deploy.local.processes import Account, reserve_port, run_folder, unprivileged


def test_reserved_ports_differ_and_can_be_listened_on() -> None:
    ports = {reserve_port() for _ in range(50)}
    assert len(ports) == 50
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_port_reserved_by_us_is_not_reserved_by_another_process() -> None:
    port = reserve_port()
    script = f"from deploy.local import processes; print(processes._bind({port}, 2))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert answer.stdout.strip() == b"None"


def test_run_folder_is_reachable_by_the_account_that_servers_drop_to() -> None:
    folder = run_folder()
    account = unprivileged()
    assert account is None or account.reaches(folder)
    folder.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
def test_folder_below_a_closed_one_is_out_of_reach(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    tmp_path.chmod(0o700)
    assert not Account("nobody", os.getuid() + 1, os.getgid() + 1).reaches(inner)


def test_missing_jars_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_JARS", str(tmp_path))
    with pytest.raises(jars.SetupError, match="run make setup"):
        jars.classpath("kafka")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_client_that_trusts_the_authority_accepts_the_server(tmp_path: Path, host: str) -> None:
    certificates = Certificates.create(tmp_path)
    assert handshake(certificates, trusted=certificates.authority, host=host)


def test_client_that_trusts_another_authority_refuses_the_server(tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path / "ours")
    other = Certificates.create(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(certificates, trusted=other.authority, host="localhost")


def handshake(certificates: Certificates, trusted: Path, host: str) -> bool:
    """Do a TLS handshake in memory."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificates.certificate, certificates.key)
    client_context = ssl.create_default_context(cafile=str(trusted))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(5):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return not waiting
