"""A topic that a real Debezium wrote → its part of a plan, which no state record has."""

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.sql_names import sql_names

MEMBERS_MAX: Final = 20
"""The number of differences that a doubt names."""
TURNS_MIN: Final = 3
"""The number of merges in which members must alternate until this is usual."""
SIGNAL_TABLE: Final = "<the connector's signal.data.collection>"


class MemberDoubt(BaseModel):
    """Why rows without an event since a change of the records' members may be wrong.

    ``changes`` are the differences, for people. ``columns`` are those that may lack values. An
    event covers its row if its offset isn't below ``since``: the offset after the last record
    before the change. In a topic of several partitions it is the highest of theirs.
    """

    model_config = ConfigDict(frozen=True)

    changes: tuple[str, ...]
    columns: tuple[str, ...]
    since: int
    ts_ms: int
    """The brokers' time of the first record with other members."""
    is_new: bool = True
    """Whether this plan brings it."""

    def what(self, topic: str) -> str:
        """Describe the doubt in one line."""
        more = len(self.changes) - MEMBERS_MAX
        changes = "; ".join(self.changes[:MEMBERS_MAX]) + (f"; {more} more" if more > 0 else "")
        at = datetime.fromtimestamp(self.ts_ms / 1000, UTC)
        return (
            f"rows with their last event before offset {self.since} of topic {topic} may be"
            f" wrong: the records' fields changed ({at:%Y-%m-%d %H:%M:%S} UTC), and events don't"
            f" show the new values of such rows: {changes}"
        )

    def remedy(self, name: str, source: str, signals: str | None) -> str:
        """Describe the solution. ``signals`` is the connector's table (signal.data.collection)."""
        data = json.dumps({"data-collections": [source], "type": "incremental"})
        text = data.replace("'", "''")
        row = f"('reread-{self.since}', 'execute-snapshot', '{text}')"
        into = SIGNAL_TABLE if signals is None else sql_names([TableName.parse(signals)])
        signal = f"INSERT INTO {into} VALUES {row}"  # noqa: S608 (for people)
        return (
            f"have Debezium read the table again: {signal}; the merge that has applied all of it"
            " ends the doubt. If the rows are right, such as after a column was added without a"
            f" default: millrace merge lakehouse --accept-doubt {shlex.quote(name)}"
        )

    def and_then(self, later: "MemberDoubt") -> "MemberDoubt":
        """Return both. The later one decides which rows are covered."""
        return later.model_copy(
            update={
                "changes": tuple(dict.fromkeys((*self.changes, *later.changes))),
                "columns": tuple(dict.fromkeys((*self.columns, *later.columns))),
                "since": max(self.since, later.since),
                "ts_ms": self.ts_ms,
            }
        )


class RowMembers(BaseModel):
    """Members of rows, in their order, with their types if records have them."""

    model_config = ConfigDict(frozen=True)

    members: tuple[tuple[str, str], ...]
    turns: int = 0
    """The number of merges in which these came back after others, and others came before or
    after."""

    @property
    def takes_turns(self) -> bool:
        """Whether such rows usually alternate with others, without DDL."""
        return self.turns >= TURNS_MIN


class DebeziumTopic(BaseModel):
    """A plan's part about a topic that a real Debezium wrote."""

    model_config = ConfigDict(frozen=True)

    topic_id: str
    """A recreated topic has another one."""
    schemas: tuple[TableSchema, ...] = ()
    """All schemas of the table. This plan's records are read as the last of them."""
    key_forms: tuple[str, ...] = ()
    """All forms of keys, in the order of their appearance."""
    types: tuple[Column, ...] = ()
    """Columns from the configuration or the source, for a table without schemas."""
    rows: tuple[RowMembers, ...] = ()
    """The members of recent rows, those of the newest rows last."""
    doubt: MemberDoubt | None = None
    rows_before: tuple[RowMembers, ...] = ()
    doubt_before: MemberDoubt | None = None
    """Both before this plan. A table that fails reads the same records again."""

    @property
    def known_columns(self) -> tuple[Column, ...]:
        """Return the columns that the plan knows, whether the table has them or not."""
        newest = self.schemas[-1].columns if self.schemas else ()
        return tuple({column.name: column for column in (*self.types, *newest)}.values())

    def told(self, columns: Sequence[Column]) -> Self:
        """Return the same with more columns from the configuration or the source."""
        known = {column.name: column for column in (*self.types, *columns)}
        return self.model_copy(update={"types": tuple(known.values())})

    def begun_again(self) -> "DebeziumTopic":
        """Return the state of a table that begins again: it keeps its columns' known types."""
        return DebeziumTopic(topic_id=self.topic_id, types=self.known_columns)

    def applied(self, *, covered: bool) -> Self:
        """Return the same once its plan is applied, which may have covered all rows."""
        doubt = None
        if self.doubt is not None and not covered:
            doubt = self.doubt.model_copy(update={"is_new": False})
        update = {"doubt": doubt, "doubt_before": doubt, "rows_before": self.rows}
        return self.model_copy(update=update)

    def taken_back(self) -> Self:
        """Return the same after its plan has failed."""
        return self.model_copy(update={"rows": self.rows_before, "doubt": self.doubt_before})
