"""State records, mutated → their content, or LogFormatError; signals and conditions → a refusal."""

import contextlib
import json
from typing import Any, Final, cast

from pydantic import BaseModel
from structlog.testing import capture_logs

from cdc.errors import LogFormatError, TableRefusedError
from cdc.kafka.signal_topic import Followed
from cdc.postgres.checks.conditions import rendered
from cdc.records.bounds import EndedRows
from cdc.records.dead_letters import ClaimHead, DeadLetter
from cdc.records.made_topics import MadeTopic
from cdc.records.orders import DeadLetterOrder, RepairOrder
from cdc.records.position import Lsn, Position
from cdc.records.readers import ReaderOffset, ReaderRecord
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import (
    SignalOffset,
    SnapshotOutcome,
    SnapshotRequest,
    TableState,
    parse_state,
)
from snapshots.channel import Background, Channels
from tests.fixtures.made_states import streaming, table_state
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target
from tests.unit.cdc.postgres.test_conditions import COLUMNS, TABLE, TEXT
from tests.unit.snapshots.test_requests import BOTH, SignalledTables

_HERE: Final = Position(1, Lsn(5), 0)
_RECORDS: Final[tuple[BaseModel, ...]] = (
    streaming(_HERE, checked=_HERE, signal_offsets={"t": SignalOffset(topic_id="x", offset=1)}),
    table_state(
        TableName("public", "a\nb"),
        requests=(SnapshotRequest(kind="incremental", signal="s", condition="id > 5"),),
        outcome=SnapshotOutcome(signal="s", status="SUCCEEDED"),
    ),
    TableSchema(
        namespace="public",
        table="t",
        version=1,
        since=str(_HERE),
        topic="t",
        replica_identity="d",
        columns=COLUMNS,
        signature="x",
    ),
    DeadLetter(
        id="x",
        table="public.t",
        op="u",
        position=_HERE,
        lsn="0/5",
        xid=7,
        schema_version=1,
        error="RECORD_REFUSED",
        reason="too large",
        where="topic t",
        topic="t",
        columns=("id",),
        before_is_key=True,
        sizes={"key": 3},
        pieces=1,
        ts_ms=5,
    ),
    MadeTopic(topic="t"),
    ReaderRecord(
        group="g",
        offsets=(
            ReaderOffset(topic="t", topic_id="i", partition=0, offset=1, kept_from=0, begun_ms=1),
        ),
        cut=_HERE,
    ),
    ClaimHead(topic="t", key="k", id="x", pieces=1),
    DeadLetterOrder(outcome="replayed", number=1, id="x"),
    RepairOrder(id="x", log="y", table="public.t", keys=({"id": "1"},)),
    EndedRows(bounds=(), upto=_HERE),
)
_DEEP: Final = "@deep@"
_DIGITS: Final = "@digits@"
_HOSTILE: Final[tuple[Any, ...]] = (
    None, True, -1, 2, 1 << 31, 1 << 63, 1 << 64, 10**400, 1.5, 1e308, float("nan"), "", _DIGITS,
    "x" * 5_000,
    "\0\x1b[31m\n", "\ud800", _DEEP, [], {}, [[1, 2]] * 100, {"\x1b" * 3_000: 1}, "2", "-1/0",
    "FFFFFFFF/FFFFFFFF", "100000000/0", "FFFFFFFF.ffffffffffffffff.FFFFFFFFFFFFFFFF", "1.1.1",
    "99999999.00000000016b3748.0000000000000001", "${env:MILLRACE_PASSWORD}", "../../etc",
)  # fmt: skip


class _Json(Target):
    """JSON of ours, whose bytes, or members, are others."""

    def changed(self, seed: bytes, mutator: Mutator) -> bytes:
        """Change bytes, or one member."""
        if self.random.random() < 0.3:
            return mutator.changed(seed)
        value = self._replaced(json.loads(seed))
        text = json.dumps(value).replace(f'"{_DEEP}"', "[" * 5_000 + "]" * 5_000)
        return text.replace(f'"{_DIGITS}"', "9" * 5_000).encode()

    def _replaced(self, value: Any) -> Any:
        chance = self.random
        if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
            return chance.choice(_HOSTILE)
        at = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if isinstance(value, dict) and chance.random() < 0.1:
            return {**value, "more": chance.choice(_HOSTILE)}
        value[at] = self._replaced(value[at])
        return value


class StateRecords(_Json):
    """Records of the topics that hold Millrace's state."""

    name = "records"
    share = 3

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seeds = [(type(record), record.model_dump_json().encode()) for record in _RECORDS]
        self._mutator = Mutator([text for _, text in self._seeds], self.random)

    def make(self) -> tuple[type[BaseModel], bytes]:
        """Make a record of a kind."""
        kind, text = self.random.choice(self._seeds)
        return kind, self.changed(text, self._mutator)

    def check(self, made: tuple[type[BaseModel], bytes]) -> None:
        """Read it; what is read is written the same."""
        kind, text = made
        value, refusal = None, ""
        try:
            value = parse_state(kind, text, "topic")
        except LogFormatError as error:
            refusal = str(error)
        assert len(refusal) < 1_000
        assert value is None or kind.model_validate_json(value.model_dump_json()) == value


class SignalTexts(_Json):
    """Records of the signal topic."""

    name = "signals"
    share = 1

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        condition = {"data-collection": "public.a", "filter": "id > 5"}
        data = {**BOTH, "reset": False, "additional-conditions": [condition], "type": "incremental"}
        kinds = ("execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "log")
        self._seeds = [
            json.dumps({"id": "1", "type": kind, "data": {**data, "message": "x"}}).encode()
            for kind in kinds
        ]
        self._mutator = Mutator(self._seeds, self.random)

    def make(self) -> list[bytes]:
        """Make a few signals."""
        chance = self.random
        return [self.changed(chance.choice(self._seeds), self._mutator) for _ in range(3)]

    def check(self, made: list[bytes]) -> None:
        """Follow them: what the log gets can be written, and read again."""
        tables = SignalledTables()
        capture, nothing = tables._requests._settings, cast("Any", None)
        background = Background(nothing, nothing, nothing, nothing)
        channels = Channels(capture, None, tables.tables, background, nothing, SignalOffset())
        for number, text in enumerate(made):
            with capture_logs():
                records = channels._sent(Followed("", number, b"pre", text), _HERE)
            assert all(len(record.value or b"") < 1 << 20 for record in records)
        for state in tables.tables.states.values():
            assert parse_state(TableState, state.model_dump_json().encode(), "topic") == state


class Conditions(Target):
    """Words of SQL in any order."""

    name = "conditions"
    share = 1

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._words = TEXT.split()

    def make(self) -> str:
        """Make a condition."""
        chance = self.random
        text = " ".join(chance.choices(self._words, k=chance.randint(1, 30)))
        if chance.random() < 0.1:
            level = chance.choice(["(", "decimal(", "a::varchar(", "coalesce(", "CASE ", "NOT "])
            return level * chance.randint(0, 20) + text
        return text

    def check(self, made: str) -> None:
        """Write it again, or refuse it."""
        with contextlib.suppress(TableRefusedError):
            rendered(TABLE, COLUMNS, made)
