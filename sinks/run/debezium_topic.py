"""A topic that a real Debezium wrote → what a plan keeps of it, which no state record tells."""

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.sql_names import sql_names

MEMBERS_MAX: Final = 20
"""How many differences a doubt names."""
TURNS_MIN: Final = 3
"""In how many merges members have to come by turns until that is usual."""
SIGNAL_TABLE: Final = "<the connector's signal.data.collection>"


class MemberDoubt(BaseModel):
    """Why rows may be wrong that no event has covered since the records' members were changed.

    ``changes`` are the differences, for people; ``columns`` those that may lack values. A row is
    covered by an event whose offset isn't below ``since``: the first one behind the last record of
    before. In a topic of several partitions that is the highest of theirs.
    """

    model_config = ConfigDict(frozen=True)

    changes: tuple[str, ...]
    columns: tuple[str, ...]
    since: int
    ts_ms: int
    """When the brokers took the first record with other members."""
    is_new: bool = True
    """Whether this plan brings it."""

    def what(self, topic: str) -> str:
        """What is doubtful, in one line."""
        more = len(self.changes) - MEMBERS_MAX
        changes = "; ".join(self.changes[:MEMBERS_MAX]) + (f"; {more} more" if more > 0 else "")
        at = datetime.fromtimestamp(self.ts_ms / 1000, UTC)
        return (
            f"rows with their last event before offset {self.since} of topic {topic} may be"
            f" wrong: the records' fields changed ({at:%Y-%m-%d %H:%M:%S} UTC), and events don't"
            f" show the new values of such rows: {changes}"
        )

    def remedy(self, name: str, source: str, signals: str | None) -> str:
        """What to do; ``signals`` is the connector's table of them (signal.data.collection)."""
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
        """Both, of which the later one decides which rows are covered."""
        return later.model_copy(
            update={
                "changes": tuple(dict.fromkeys((*self.changes, *later.changes))),
                "columns": tuple(dict.fromkeys((*self.columns, *later.columns))),
                "since": max(self.since, later.since),
                "ts_ms": self.ts_ms,
            }
        )


class RowMembers(BaseModel):
    """Members that rows have had, in their order, with their types where records tell these."""

    model_config = ConfigDict(frozen=True)

    members: tuple[tuple[str, str], ...]
    turns: int = 0
    """In how many merges these came back after others, and others after them, or before them."""

    @property
    def takes_turns(self) -> bool:
        """Whether it is usual that such rows come beside others, and no DDL is behind it."""
        return self.turns >= TURNS_MIN


class DebeziumTopic(BaseModel):
    """What a plan has of a topic that a real Debezium wrote."""

    model_config = ConfigDict(frozen=True)

    topic_id: str
    """A topic made anew has another one."""
    schemas: tuple[TableSchema, ...] = ()
    """All that the table has had; this plan's records are read as the last of them."""
    key_forms: tuple[str, ...] = ()
    """All forms that keys have had, in the order in which they came up."""
    types: tuple[Column, ...] = ()
    """Columns that were told, by the configuration or the source, of a table without schemas."""
    rows: tuple[RowMembers, ...] = ()
    """The members that rows have had of late, those of the newest rows last."""
    doubt: MemberDoubt | None = None
    rows_before: tuple[RowMembers, ...] = ()
    doubt_before: MemberDoubt | None = None
    """Both as they were before this plan: a table that fails reads the same records again."""

    @property
    def known_columns(self) -> tuple[Column, ...]:
        """Columns that the plan knows, whether the table has them or not."""
        newest = self.schemas[-1].columns if self.schemas else ()
        return tuple({column.name: column for column in (*self.types, *newest)}.values())

    def told(self, columns: Sequence[Column]) -> Self:
        """The same with columns that were told."""
        known = {column.name: column for column in (*self.types, *columns)}
        return self.model_copy(update={"types": tuple(known.values())})

    def begun_again(self) -> "DebeziumTopic":
        """What is left where the table begins again: the types that were told."""
        return DebeziumTopic(topic_id=self.topic_id, types=self.known_columns)

    def applied(self, *, covered: bool) -> Self:
        """The same once its plan is applied, which may have covered all rows."""
        doubt = None
        if self.doubt is not None and not covered:
            doubt = self.doubt.model_copy(update={"is_new": False})
        update = {"doubt": doubt, "doubt_before": doubt, "rows_before": self.rows}
        return self.model_copy(update=update)

    def taken_back(self) -> Self:
        """The same where its plan has failed."""
        return self.model_copy(update={"rows": self.rows_before, "doubt": self.doubt_before})
