"""A duration and a seed → one run: servers, load, faults, an end, and the verdict on the log."""

import json
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.errors import ExitCode
from cdc.records.position import Lsn
from tests.chaos import checker, witness
from tests.chaos.nemesis import WEIGHTS, Fault, Nemesis
from tests.chaos.stand import WITNESS, Stand
from tests.chaos.verdict import KEYS, Verdict
from tests.chaos.watch import Probe, Watch
from tests.chaos.witness import Row, Transaction, Value
from tests.chaos.workload import Session
from tests.fixtures.pipeline import LogRecord, read_log

SESSIONS: Final = 4
RECOVERY_S_MAX: Final = 120.0
_NO_EXITS: Final = {
    ExitCode.OK,
    ExitCode.BUG,
    ExitCode.CONFIG,
    ExitCode.GAP,
    ExitCode.CORRUPT_MESSAGE,
    ExitCode.TOPIC_MISMATCH,
    ExitCode.LOG_FORMAT,
    ExitCode.CONVERSION,
}
"""Ends that no fault of ours is a reason for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: seconds of faults, and with what."""

    duration_s: float
    seed: int
    kinds: Mapping[str, int] = field(default_factory=lambda: WEIGHTS)
    module: str = "millrace"
    keep: Path | None = None
    brokers: int = 1
    recovery_s: float = RECOVERY_S_MAX
    drain_s: float = 180.0


@dataclass(slots=True)
class Outcome:
    """What has come of it."""

    plan: Plan
    verdict: Verdict = field(default_factory=Verdict)
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: list[tuple[float, str]] = field(default_factory=list)
    exits: Counter[int] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    peak_mb: float = 0.0
    samples: int = 0
    load: dict[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether nothing at all is wrong."""
        return self.verdict.is_good and not self.complaints

    @property
    def figures(self) -> dict[str, Any]:
        """What people compare."""
        seconds = sorted(seconds for seconds, _ in self.recoveries)
        verdict = {name: value for name, value in asdict(self.verdict).items() if name != "shown"}
        return {
            "seed": self.plan.seed,
            "duration_s": self.plan.duration_s,
            "brokers": self.plan.brokers,
            "faults": self.faults.total(),
            "faults_by_kind": dict(sorted(self.faults.items())),
            **verdict,
            "recover_p50_s": round(statistics.median(seconds), 2) if seconds else None,
            "recover_max_s": round(seconds[-1], 2) if seconds else None,
            "rss_mb": round(self.peak_mb),
            "cycles": len(seconds),
            "exits": {str(code): count for code, count in sorted(self.exits.items())},
            "samples": self.samples,
            "load": self.load,
        }


def run(plan: Plan, folder: Path) -> Outcome:
    """Let it all happen below the folder, which servers of ours have to reach."""
    outcome = Outcome(plan)
    daemons = 2 if plan.seed % 3 == 0 else 1
    with Stand(folder, module=plan.module, daemons=daemons, brokers=plan.brokers) as stand:
        _live(stand, plan, outcome)
        committed = witness.read(stand.conninfo, WITNESS)
        topics = stand.topics()
        records = read_log(stand.reader, topics)
        progress = stand.progress()
        if progress is None or progress.events != len(records):
            outcome.complaints.append(f"the log has {len(records)} events, it says: {progress}")
        rows = {table: _rows(stand.conninfo, table) for table in KEYS}
    if plan.keep is not None:
        keep(plan.keep, committed, records)
    partitions = {topic.rpartition(".")[2]: count for topic, count in topics.items()}
    outcome.verdict = checker.check(committed, records, rows, partitions)
    return outcome


def _live(stand: Stand, plan: Plan, outcome: Outcome) -> None:
    """Load and faults, then calm until the log has everything, and an end in order."""
    stop, quiet = threading.Event(), threading.Event()
    sessions = [Session(stand.conninfo, plan.seed, n, quiet) for n in range(1, SESSIONS + 1)]
    probe, watch = Probe(stand, stop), Watch(stand, stop)
    begun = time.monotonic()
    try:
        for thread in (*sessions, *probe.threads, watch):
            thread.start()
        _trouble(stand, plan, probe, outcome)
        seconds = time.monotonic() - begun
        quiet.set()
        for session in sessions:
            session.join()
        end = Lsn.parse(stand.ask("SELECT pg_current_wal_insert_lsn()::text"))
        if not stand.reaches(end, plan.drain_s):
            outcome.complaints.append(f"the log doesn't reach {end}: {stand.progress()}")
        if not stand.until(stand.is_settled, plan.drain_s):
            outcome.complaints.append("tables stay doubtful, or aren't read to their ends")
    finally:
        quiet.set()
        stop.set()
    for thread in (*probe.threads, watch):
        thread.join()
    _end_daemons(stand, outcome)
    outcome.complaints += watch.violations
    outcome.peak_mb, outcome.samples = watch.peak_mb, watch.samples
    outcome.load = _load(sessions, seconds) | {"daemons": len(stand.daemons)}


def _load(sessions: Sequence[Session], seconds: float) -> dict[str, Any]:
    tally = sum((session.tally for session in sessions), Counter[str]())
    made = tally.total() - tally["refused"] - tally["connections lost"]
    rate = round(made / seconds, 1)
    figures = {"sessions": len(sessions), "transactions": made, "transactions_s": rate}
    return {**figures, **dict(sorted(tally.items()))}


def _trouble(stand: Stand, plan: Plan, probe: Probe, outcome: Outcome) -> None:
    nemesis = Nemesis(stand, plan.seed, plan.kinds)
    deadline = time.monotonic() + plan.duration_s
    while True:
        time.sleep(nemesis.calm_s())
        if time.monotonic() >= deadline:
            return
        fault = nemesis.next()
        if fault.hit:
            outcome.faults[fault.kind] += 1
        if fault.hit and not nemesis.impatient():
            _await_recovery(fault, plan.recovery_s, probe, outcome)


def _await_recovery(fault: Fault, at_most_s: float, probe: Probe, outcome: Outcome) -> None:
    seconds = probe.recovered(fault.ended, at_most_s)
    if seconds is None:
        outcome.complaints.append(f"not recovered {at_most_s:.0f} s after: {fault.kind}")
    else:
        outcome.recoveries.append((seconds, fault.kind))
        print(f"{fault.kind}: recovered after {seconds:.1f} s", flush=True)


def _end_daemons(stand: Stand, outcome: Outcome) -> None:
    active = stand.active()
    for daemon in sorted(stand.daemons, key=lambda daemon: daemon is active):
        code = daemon.stop()
        # A standby that has just been started again may not listen yet.
        if code != ExitCode.OK and (daemon is active or code != -signal.SIGTERM):
            outcome.complaints.append(f"{daemon.name} ended with exit code {code} when told to")
        outcome.exits.update(daemon.exits)
        for bad in sorted({*daemon.exits} & _NO_EXITS - {ExitCode.OK}):
            outcome.complaints.append(f"{daemon.name} ended by itself with exit code {bad}")


def _rows(conninfo: str, table: str) -> list[Row]:
    """The table's rows, every value as PostgreSQL prints it."""
    with psycopg.connect(conninfo) as connection:
        columns = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [table],
        ).fetchall()
        texts = [sql.SQL("{}::text").format(sql.Identifier(name)) for name, _ in columns]
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(texts), sql.Identifier(table)
        )
        return [
            {name: Value(kind, text) for (name, kind), text in zip(columns, row, strict=True)}
            for row in connection.execute(query)
        ]


def keep(folder: Path, committed: list[Transaction], records: list[LogRecord]) -> None:
    """Leave both sides for a checker of one's own, a JSON object a line."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "committed.jsonl").open("w", encoding="utf-8") as file:
        for transaction in committed:
            file.write(json.dumps(asdict(transaction), ensure_ascii=False) + "\n")
    with (folder / "log.jsonl").open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(_record(record), ensure_ascii=False) + "\n")


def _record(record: LogRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "position": str(record.position),
        "schema_version": record.schema_version,
        "filled": record.filled,
        "key": record.key,
        "value": record.value,
    }
