"""The settings and parts of a session that Millrace starts."""

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sinks.spark.jars import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


def test_a_jvm_has_its_classes_from_the_archive_that_setup_made(spark: "SparkSession") -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    classes = class_archive()
    if not classes.stat().st_size:
        pytest.skip("this Java makes no archive")
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    assert str(classes) in maps, "another Java than the archive's? Remove it, and: make setup"


def listening(pid: int) -> dict[int, str]:
    """Port → address, of all that a process listens at."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(path.readlink()))
    found = {}
    for file in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                address, port = local.split(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                found[int(port, 16)] = str(ipaddress.ip_address(b"".join(words)))
    return found


def test_other_machines_reach_no_port_of_a_session_and_others_here_need_its_token(
    spark: "SparkSession",
) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    ports = listening(jvm.java.lang.ProcessHandle.current().pid())
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    assert gateway.gateway_parameters.port in ports
    for address in map(ipaddress.ip_address, ports.values()):
        assert (getattr(address, "ipv4_mapped", None) or address).is_loopback
    assert spark.sparkContext.uiWebUrl is None
    with socket.create_connection(("127.0.0.1", gateway.gateway_parameters.port)) as stranger:
        stranger.sendall(b"c\nt\ngetVersion\ne\n")
        answer = stranger.recv(1024)
    assert not answer.startswith(b"!y")
