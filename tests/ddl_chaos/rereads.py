"""The daemon's log → how often tables were read again, and how many of these reads were useless."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.ddl_chaos.comparison import full_name
from tests.ddl_chaos.shapes import SHAPES
from tests.ddl_chaos.source import Source

_MARGIN_S: Final = 1.0
"""A step is noted behind its commit, a doubt behind the look at the catalog that raised it."""
_DOUBTS: Final = (
    "a table is doubtful",
    "columns were altered",
    "another table has the name",
    "a new table is captured",
)
"""How lines begin that announce a read."""
_TABLES: Final = {str(full_name(table)): table for table in SHAPES}


class Rereads:
    """Follows the log; ``count`` says how many reads were made, needless and undecidable."""

    def __init__(self, log: Path, source: Source) -> None:
        self.count: Counter[str] = Counter()
        self.needless: list[str] = []
        self._log = log
        self._source = source
        self._offset = 0
        self._doubted: dict[str, float] = {}
        self._pending: set[str] = set()
        self._old: dict[str, int] = {}
        self._older: dict[str, int] = {}

    def begin(self) -> None:
        """What was read before counts as the tables' first reads; nobody has changed rows yet."""
        self.follow()
        self.count.clear()
        self.settled()
        self.settled()

    def settled(self) -> None:
        """Everything was looked at: rows from before the last time are old to the daemon."""
        ((xid,),) = self._source.ask("SELECT txid_snapshot_xmin(txid_current_snapshot())::bigint")
        self._older, self._old = self._old, dict.fromkeys(SHAPES, int(xid))

    def follow(self) -> None:
        """Take what was logged since."""
        for line in self._lines():
            table = _TABLES.get(str(line.get("table")))
            if table is None:
                continue
            if line["event"] == "table read":
                self.count["rereads"] += 1
                self._pending.discard(table)
            elif line["event"].startswith(_DOUBTS):
                at = datetime.fromisoformat(line["timestamp"]).timestamp()
                self._judge(table, at, str(line.get("reason", line["event"])))

    def _judge(self, table: str, at: float, reason: str) -> None:
        """Whether anything was done to the table since it was doubted the last time.

        One read settles all doubts that come before it.
        """
        last = self._doubted.get(table, 0.0) - _MARGIN_S
        self._doubted[table] = at
        if table in self._pending:
            return
        self._pending.add(table)
        if any(last < cause < at + _MARGIN_S for cause in self._source.causes[table]):
            return
        kind = "needless" if self._can_tell(table) else "undecidable"
        self.count[f"{kind}_rereads"] += 1
        if kind == "needless":
            self.needless.append(f"{table} is doubtful for nothing: {reason}")

    def _can_tell(self, table: str) -> bool:
        """Whether a TOAST table, or an old row in the first pages, tells that nothing changed.

        Not the TOAST table of a partition, nor where TRUNCATE isn't published: TRUNCATE keeps it.
        A partition that is new, and empty, tells by that.
        """
        truncates = self._source.publishes_truncate()
        leaves = self._source.ask(
            "SELECT oid::regclass::text, reltoastrelid <> 0, relispartition, relfilenode = oid"
            f" FROM pg_class WHERE oid = '{table}'::regclass AND relkind = 'r'"
            f" OR oid IN (SELECT relid FROM pg_partition_tree('{table}') WHERE isleaf)"
        )
        return all(
            (has_toast and truncates and not is_partition)
            or (is_new and is_partition and self._is_empty(leaf))
            or self._has_old_row(table, leaf)
            for leaf, has_toast, is_partition, is_new in leaves
        )

    def _is_empty(self, leaf: str) -> bool:
        return not self._source.ask(f"SELECT FROM {leaf} LIMIT 1")

    def _has_old_row(self, table: str, leaf: str) -> bool:
        if table not in self._older:
            return False
        ((has_one,),) = self._source.ask(
            f"SELECT EXISTS (SELECT FROM {leaf} WHERE xmin::text::bigint < {self._older[table]}"
            " AND ctid < '(4,0)')"
        )
        return bool(has_one)

    def _lines(self) -> list[dict[str, Any]]:
        with self._log.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = []
        for text in whole.splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # a traceback, or what another program says
                continue
            if isinstance(line, dict) and "event" in line:
                lines.append(line)
        return lines
