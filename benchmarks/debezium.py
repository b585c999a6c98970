"""A backlog of WAL -> events a second that Debezium Server 3.6 brings into Kafka.

`make bench-peers` fetches it; it needs Java 21 or newer: the newest in JAVA_HOME or /usr/lib/jvm.
Its settings are those that its users are told to raise for throughput. Like the daemon it finds its
slot and goes on from its offsets; its first ten seconds are left out.
"""

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.captured import backlog
from benchmarks.scene import Scene, peak_rss_mb, say
from benchmarks.shapes import Shape
from deploy.local.jars import SetupError, jar_folder
from deploy.local.processes import Command, Process

_WARM_UP_S: Final = 10.0
_POLL_S: Final = 0.1
_SILENCE_S: Final = 120.0
_JAVA_MIN: Final = 21
_ROWS: Final = 1_200_000
"""Enough for a steady part of some length."""
_PREFIX: Final = "dbz"
_SETTINGS: Final = """
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore
debezium.source.offset.storage.file.filename={folder}/offsets.dat
debezium.source.offset.flush.interval.ms=1000
debezium.source.database.hostname=127.0.0.1
debezium.source.database.port={port}
debezium.source.database.user={user}
debezium.source.database.password={password}
debezium.source.database.dbname={dbname}
debezium.source.plugin.name=pgoutput
debezium.source.slot.name={prefix}
debezium.source.publication.name={publication}
debezium.source.publication.autocreate.mode=disabled
debezium.source.snapshot.mode={mode}
debezium.source.topic.prefix={prefix}
debezium.source.table.include.list=public.{table}
debezium.source.message.prefix.exclude.list=.*
debezium.source.max.batch.size=8192
debezium.source.max.queue.size=32768
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers={brokers}
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.compression.type=lz4
debezium.sink.kafka.producer.linger.ms=20
debezium.format.value=json
debezium.format.key=json
debezium.format.value.schemas.enable=false
debezium.format.key.schemas.enable=false
quarkus.http.port=0
quarkus.log.level=WARN
"""


class PeerRound(NamedTuple):
    """Events in the steady part, its seconds, and memory."""

    events: int
    seconds: float
    rss_mb: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds


def is_there() -> bool:
    """Whether it was fetched."""
    return _folder().exists()


def measure(scene: Scene, shape: Shape, rounds: int) -> list[PeerRound]:
    """Make the rounds; no daemon may be running."""
    server = _Server(scene, shape.create.split()[2])
    server.start()
    server.wait_for_slot(scene)
    server.stop()
    return [_round(scene, shape, server, _ROWS) for _ in range(rounds)]


def measure_snapshot(scene: Scene, shape: Shape, rows: int) -> PeerRound:
    """Its first snapshot of a table of so many rows; no daemon may be running."""
    say(f"Debezium Server: a table of {rows:,} rows")
    server = _Server(scene, shape.create.split()[2], mode="initial")
    return _steady(server, 0, rows)


def _round(scene: Scene, shape: Shape, server: "_Server", rows: int) -> PeerRound:
    say(f"Debezium Server: {rows:,} rows of shape {shape.name}")
    backlog(scene, shape, rows)
    return _steady(server, server.records(), rows)


def _steady(server: "_Server", before: int, rows: int) -> PeerRound:
    """Start it, and wait for so many records."""
    process = server.start()
    steady: tuple[int, float] | None = None
    begun = last = time.monotonic()
    while (done := server.records() - before) < rows:
        now = time.monotonic()
        if not done:
            begun = now
        elif steady is None and now - begun >= _WARM_UP_S:
            steady = done, now
        if now - last > _SILENCE_S:
            raise TimeoutError(f"{done:,} of {rows:,} rows after {_SILENCE_S:.0f} s")
        time.sleep(_POLL_S)
        last = now if done else last
    end = time.monotonic()
    rss_mb = peak_rss_mb(process)
    server.stop()
    if steady is None:
        raise ValueError("it was done within its first 10 s: give it more rows")
    found = PeerRound(done - steady[0], end - steady[1], rss_mb)
    say(f"  {found.rate:,.0f} events/s in its steady part, peak RSS {rss_mb} MiB")
    return found


class _Server:
    """One Debezium Server with one topic."""

    def __init__(self, scene: Scene, table: str, mode: str = "no_data") -> None:
        self._home = _home()
        self._java = _java()
        self._folder = scene.pipeline.folder / "debezium"
        (self._folder / "config").mkdir(parents=True)
        self._topic = f"{_PREFIX}.public.{table}"
        self._process: Process | None = None
        values = {
            **scene.source,
            "folder": self._folder,
            "prefix": _PREFIX,
            "publication": scene.pipeline.settings.capture.publication_name,
            "table": table,
            "mode": mode,
            "brokers": scene.kafka["bootstrap.servers"],
        }
        text = _SETTINGS.format(**values)
        config = self._folder / "config" / "application.properties"
        config.write_text(text, encoding="utf-8")
        admin = AdminClient(dict(scene.kafka))
        admin.create_topics([NewTopic(self._topic, 1)])[self._topic].result()
        self._consumer = Consumer({**scene.kafka, "group.id": "peers"})

    def start(self) -> Process:
        """Start it."""
        jars = [*self._home.glob("debezium-server-*runner.jar"), self._home / "lib" / "*"]
        path = os.pathsep.join(map(str, [*jars, self._folder / "config"]))
        opened = (
            "--add-opens=java.base/java.lang=ALL-UNNAMED"  # its threads want it, from Java 24 on
        )
        words = (self._java, opened, "-cp", path, "io.debezium.server.Main")
        self._process = Command(
            "Debezium Server",
            words,
            self._folder / "server.log",
            environment={
                "QUARKUS_CONFIG_LOCATIONS": str(self._folder / "config/application.properties")
            },
        ).start()
        return self._process

    def stop(self) -> None:
        """Let it store its offsets."""
        if self._process is not None:
            self._process.stop(timeout_s=30)

    def wait_for_slot(self, scene: Scene) -> None:
        """Wait until it streams."""
        query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
        deadline = time.monotonic() + _SILENCE_S
        with scene.connect() as connection:
            while connection.execute(query, [_PREFIX]).fetchone() is None:
                if time.monotonic() > deadline:
                    raise TimeoutError("Debezium Server doesn't stream; its log says why")
                time.sleep(_POLL_S)
        time.sleep(5)  # its offsets are stored each second

    def records(self) -> int:
        """How many records its topic has."""
        place = TopicPartition(self._topic, 0)
        return int(self._consumer.get_watermark_offsets(place, timeout=10)[1])


def _folder() -> Path:
    return jar_folder("debezium") / "debezium-server"


def _home() -> Path:
    home = _folder()
    if not home.exists():
        raise SetupError(f"no Debezium Server in {home}: run make bench-peers")
    return home


def _java() -> str:
    """The newest Java there is."""
    homes = [os.environ.get("JAVA_HOME", ""), *map(str, Path("/usr/lib/jvm").glob("*"))]
    found = [(_version(f"{home}/bin/java"), f"{home}/bin/java") for home in homes if home]
    version, java = max(found, default=(0, ""))
    if version < _JAVA_MIN:
        raise SetupError(f"Debezium Server needs Java {_JAVA_MIN} or newer: set JAVA_HOME")
    return java


def _version(java: str) -> int:
    if not Path(java).exists():
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', told)
    return int(match[1]) if match else 0
