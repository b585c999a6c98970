"""Records → the log, in Kafka transactions that are committed or aborted as a whole.

Rules. No call into librdkafka lasts longer than ATTEMPT_S. It is resumed, with a call of
`while_waiting` in between, because PostgreSQL must hear from us. Delivered records cause no
callback. Refused ones do, and doom their transaction; the error names the culprit. After any error,
call only `close`. A new writer's `open` settles the rest (librdkafka 2.16 can't continue after some
errors: "skipped sequence numbers"), and the progress record shows whether an unanswered commit
succeeded. One thread uses a writer at a time.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.compiled import fast
from cdc.errors import LogUnreachableError, MillraceError, RecordRefusedError, RefusedRecord
from cdc.kafka import options
from cdc.kafka.errors import (
    COMPLAINTS_MAX,
    is_access,
    is_fencing,
    is_refusal,
    is_too_large,
    log_error,
    reason,
    telling,
)
from cdc.records.position import HEADER
from cdc.records.record import (
    Record,
    RecordOrBatch,
    each,
    header_position_text,
    position_text,
    record_bytes,
)

ATTEMPT_S: Final = 0.5
GIVE_UP_S: Final = options.TRANSACTION_TIMEOUT_MS / 1_000
"""How long a call is resumed before the brokers count as unreachable."""
CLOSE_S: Final = 2.0
"""Time to abort on close, so that readers don't wait for the transaction's timeout."""
_ROOM_S: Final = 0.1
_FLUSH_S: Final = 0.1
"""From 0.2 s on, confluent-kafka calls us back with an exception set: a SystemError hides it."""
_POLL_EVERY: Final = 500
_REPORT_S: Final = 1.0
_KEY_CHARS_MAX: Final = 200


class Suspects(NamedTuple):
    """The range of a refused record: first and last position (text), sent ``group`` at a time."""

    first: str
    last: str
    group: int


class _Reported(NamedTuple):
    """A record in a delivery report. ``size`` is the bytes of key and value."""

    topic: str
    key: bytes | None
    size: int


class LogWriter:
    """The only producer of a slot."""

    def __init__(
        self,
        kafka_options: Mapping[str, str],
        transactional_id: str | None,
        while_waiting: Callable[[], None],
        suspects: Suspects | None = None,
    ) -> None:
        """``suspects``: the range of records with one that the brokers have refused before."""
        self.while_waiting = while_waiting
        self._suspects = suspects
        self._group: list[Record] = []
        """Suspects sent since the brokers took all before them."""
        self._where = f"transactional.id {transactional_id}" if transactional_id else "events"
        self._written = fast.WrittenRecords()
        self._added: list[RecordOrBatch] = []
        self._added_records = self._added_bytes = 0
        self._refused: list[tuple[KafkaError, _Reported]] = []
        self._complaints: deque[KafkaError] = deque(maxlen=COMPLAINTS_MAX)
        self._begun: float | None = None
        self._opened = False
        self._broken = False
        config: dict[str, Any] = {
            **options.producer_options(kafka_options, transactional_id),
            "on_delivery": self._on_refused,
            "error_cb": self._complaints.append,
            "delivery.report.only.error": True,  # otherwise every delivered record calls back
        }
        self._producer: Producer | None = options.client(Producer, config, kafka_options)
        self._transaction_timeout_s = int(config["transaction.timeout.ms"]) / 1_000

    @property
    def pending_records(self) -> int:
        """The number of records in the next commit so far, including those not written yet."""
        return len(self._written) + self._added_records

    @property
    def pending_bytes(self) -> int:
        """The bytes of their keys and values."""
        return self._written.size + self._added_bytes

    @property
    def has_unwritten(self) -> bool:
        """Whether added records aren't written yet."""
        return bool(self._added)

    @property
    def transaction_age_s(self) -> float:
        """The age of the open transaction. 0: none is open."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    def open(self) -> None:
        """Fence off every older writer of this id, and settle its unfinished transaction."""
        self._resume(self._client().init_transactions, "opening the log for writing")
        self._opened = True

    def add(self, records: Iterable[RecordOrBatch], count: int = 0, size: int = 0) -> None:
        """Add records to write later. ``count`` and ``size`` (bytes) are the numbers for limits."""
        self._added += records
        self._added_records += count
        self._added_bytes += size

    def write(self, records: Iterable[RecordOrBatch] = ()) -> None:
        """Write added records, and these, to the transaction. Begin one if none is open.

        Waits for room in the client's bounded queue. This wait is the back pressure.
        """
        batch, self._added = [*self._added, *records], []
        self._added_records = self._added_bytes = 0
        self._write(batch)

    def _write(self, records: list[RecordOrBatch]) -> None:
        if self._suspects is not None:
            records = self._write_suspects(list(each(records)), self._suspects)
        self._send(records)

    def _write_suspects(self, records: list[Record], suspects: Suspects) -> list[RecordOrBatch]:
        """Send records up to the last suspect, in separate groups. Return the rest."""
        for number, record in enumerate(records):
            at = position_text(record)
            if at > suspects.last:
                self._deliver()
                self._suspects = None
                return [*records[number:]]
            if at < suspects.first:
                self._send([record])
                continue
            if not self._group:
                self._deliver()
            self._group.append(record)
            self._send([record])
            if len(self._group) == suspects.group:
                self._deliver()
        self._deliver()
        return []

    def _deliver(self, while_waiting: Callable[[], None] | None = None) -> None:
        """Wait until the brokers have taken or refused all written records."""
        deadline = time.monotonic() + GIVE_UP_S
        while self._begun is not None:
            done = self.flush()
            self._wait(0, while_waiting)
            if done:
                break
            if time.monotonic() > deadline:
                self._broken = True
                what = f"the brokers accepted no record for {GIVE_UP_S:.0f} s"
                raise LogUnreachableError(what, where=self._where)
        self._group.clear()

    def _send(self, batch: list[RecordOrBatch]) -> None:
        done = 0
        deadline = time.monotonic() + GIVE_UP_S
        while done < len(batch):
            if self._begun is None:
                self._begin()
            before = len(self._written)
            end = min(len(batch), done + _POLL_EVERY)
            try:
                stopped = fast.produce(self._client().produce, batch, done, end, self._written)
            except KafkaException as exception:
                self._fail_produce(reason(exception), self._written.culprit)
            self._wait(_ROOM_S if stopped < end else 0)
            if len(self._written) > before:
                deadline = time.monotonic() + GIVE_UP_S
            elif time.monotonic() > deadline:
                self._broken = True
                topic = next(each(batch[done:])).topic
                what = f"no record could be sent for {GIVE_UP_S:.0f} s"
                raise LogUnreachableError(what, where=topic)
            done = stopped

    def flush(self) -> bool:
        """Whether the brokers have all written records, within one attempt's time.

        A failed transaction may never be flushed; `commit` then raises the reason.
        """
        deadline = time.monotonic() + ATTEMPT_S
        try:
            while self._client().flush(_FLUSH_S):
                if time.monotonic() > deadline:
                    return False
        except KafkaException as exception:
            self._fail(reason(exception), "sending to the log")
        return True

    def commit(self, while_waiting: Callable[[], None] | None = None) -> None:
        """Commit everything written since the last commit.

        Does nothing if no transaction is open.
        """
        if self._begun is None:
            return
        commit = self._client().commit_transaction
        self._resume(commit, "committing to the log", while_waiting=while_waiting)
        self._begun = None
        self._written.clear()
        self._refused.clear()

    def close(self) -> None:
        """Close in any state. Abort the open transaction if the broker answers soon."""
        if self._producer is not None and self._begun is not None and not self._broken:
            with contextlib.suppress(MillraceError):
                self._resume(self._producer.abort_transaction, "aborting", give_up_s=CLOSE_S)
        # Producer.close() would wait for the brokers without limit. Dropping it doesn't wait.
        self._producer = None

    def _client(self) -> Producer:
        assert self._producer is not None, "the writer is closed"  # noqa: S101
        return self._producer

    def _begin(self) -> None:
        try:
            self._client().begin_transaction()
        except KafkaException as exception:
            self._fail(reason(exception), "beginning a transaction of the log")
        self._begun = time.monotonic()

    def _wait(self, timeout_s: float, while_waiting: Callable[[], None] | None = None) -> None:
        """Serve the client's callbacks and all that wait for us."""
        self._poll(timeout_s, "writing to the log")
        (while_waiting or self.while_waiting)()
        if self._refused:
            self._fail_refused()

    def _poll(self, timeout_s: float, doing: str) -> None:
        """Serve the client's callbacks. A fatal error may be raised here first."""
        try:
            self._client().poll(timeout_s)
        except KafkaException as exception:
            self._fail(reason(exception), doing)

    def _resume(
        self,
        call: Callable[[float], None],
        doing: str,
        give_up_s: float = GIVE_UP_S,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        """Repeat a call in attempts until it succeeds."""
        deadline = time.monotonic() + give_up_s
        while True:
            started = time.monotonic()
            try:
                call(ATTEMPT_S)
            except KafkaException as exception:
                error = reason(exception)
                if not error.retriable():
                    self._fail(error, doing)
            else:
                return
            quick = time.monotonic() - started < _ROOM_S
            self._poll(_ROOM_S if quick else 0, doing)
            (while_waiting or self.while_waiting)()
            complaint = telling(None, self._complaints)
            if not self._opened and complaint is not None and is_access(complaint):
                raise log_error(complaint, doing, self._where)
            if time.monotonic() > deadline:
                self._broken = True
                because = f": {complaint.str()}" if complaint else ""
                raise LogUnreachableError(
                    f"{doing}: the brokers didn't answer for {give_up_s:.0f} s{because}",
                    where=self._where,
                    remedy="check that the brokers run; the next start finds out what the log has",
                )

    def _on_refused(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and is_refusal(error):
            size = len(message.key() or b"") + len(message.value() or b"")
            self._refused.append((error, _Reported(message.topic() or "", message.key(), size)))

    def _fail_produce(self, error: KafkaError, record: Record | None) -> NoReturn:
        assert record is not None, "the client has none"  # noqa: S101
        if is_refusal(error):
            self._group = [record]
            raise self._refusal(error, _Reported(record.topic, record.key, record_bytes(record)))
        if error.name() in {"_STATE", "_FATAL"}:
            # The transaction has failed already; another begin raises the reason.
            try:
                self._client().begin_transaction()
            except KafkaException as exception:
                error = reason(exception)
        self._fail(error, f"writing to topic {record.topic}")

    def _fail(self, error: KafkaError, doing: str) -> NoReturn:
        if is_refusal(error):
            deadline = time.monotonic() + _REPORT_S
            while not self._refused and time.monotonic() < deadline:
                with contextlib.suppress(KafkaException):  # the error is being explained
                    self._client().poll(_ROOM_S)
            if self._refused:
                self._fail_refused()
        self._broken = self._broken or error.fatal()
        if is_fencing(error) and self.transaction_age_s >= self._transaction_timeout_s:
            # The coordinator also raises the epoch of a transaction that it times out. A restart is
            # safe in both cases, as it takes the slot before the log.
            raise LogUnreachableError(
                f"{doing}: the transaction was open longer than transaction.timeout.ms",
                where=self._where,
            )
        raise log_error(error, doing, self._where)

    def _fail_refused(self) -> NoReturn:
        """Raise the refusal. Brokers report a whole batch, and don't name the record."""
        error, _record = self._refused[0]
        alike = [record for other, record in self._refused if other.code() == error.code()]
        if is_too_large(error):
            culprit = max(alike, key=lambda record: record.size)
        else:
            culprit = next((record for record in alike if record.key is None), alike[0])
        raise self._refusal(error, culprit)

    def _refusal(self, error: KafkaError, record: _Reported) -> RecordRefusedError:
        """Return the refusal, with the record. It is certain only if it was sent alone."""
        group = self._group
        position = self._written.position(*record)
        first, last = (header_position_text(header) for header in self._written.span())
        if group:
            first, last = position_text(group[0]), position_text(group[-1])
        if len(group) == 1:
            position = dict(group[0].headers).get(HEADER, b"")
        refusal = _refusal(error, record, position.decode("ascii", "backslashreplace") or "unknown")
        suspects = len(group) or len(self._written)
        at = header_position_text(position)
        if not first <= at <= last:  # another record with this key is as large
            at = ""
        refusal.refused = RefusedRecord(record.topic, record.key, first, last, suspects, at)
        return refusal


def _refusal(error: KafkaError, record: _Reported, position: str) -> RecordRefusedError:
    topic, key, size = record
    shown = "no key"
    if key is not None:
        shown = "key " + key.decode("utf-8", "backslashreplace")[:_KEY_CHARS_MAX]
    if is_too_large(error):
        what = "a record is too large for the log"
        remedy = (
            "raise the topic's limit (kafka-configs --alter --entity-type topics --entity-name"
            f" {topic} --add-config max.message.bytes=…), and message.max.bytes in [kafka] if"
            " that is lower; or set oversized.record in [capture] to keep such records; or leave"
            " the table out (table.exclude.list)"
        )
    elif key is None and error.name() == "INVALID_RECORD":
        what = "a compacted topic refuses a record without a key"
        remedy = (
            "if the table lost its primary key after its topic was made, add one and read the"
            " table again (millrace snapshot SCHEMA.TABLE): its changes in the WAL have no key;"
            " if it is routed to the topic of a table with a key, route it elsewhere; or leave"
            " it out (table.exclude.list)"
        )
    else:
        what = f"the broker refuses a record: {error.str()}"
        remedy = "read the broker's log"
    return RecordRefusedError(
        what,
        where=f"topic {topic}, {shown}, position {position}, {size} bytes",
        remedy=remedy,
    )
