"""Keep an audit trail: who reads it can tell what any row was at any time.

    python examples/audit_trail.py millrace.toml audit.db

Each change becomes a row of the table ``audit`` in a file of SQLite. A change may come again after
a crash; its topic, partition and offset name it, so that it is kept once. Ctrl-C ends the program,
and its next start goes on where this one was.
"""

import json
import sqlite3
import sys

from millrace import changes

TABLE = """
    CREATE TABLE IF NOT EXISTS audit (
        reader TEXT, topic TEXT, partition INT, "offset" INT, committed TEXT, "table" TEXT,
        operation TEXT, "key" TEXT, before TEXT, after TEXT, xid INT,
        PRIMARY KEY (reader, topic, partition, "offset")
    )
"""
GROUP = "audit"
"""A log that was made again has the same offsets: read it by another group."""


def main(config: str, file: str) -> None:
    """Write the trail until a signal comes."""
    trail = sqlite3.connect(file, isolation_level=None)
    trail.execute(TABLE)
    with changes(config, group=GROUP) as stream:
        for change in stream:
            trail.execute(
                "INSERT OR IGNORE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    GROUP,
                    change.topic,
                    change.partition,
                    change.offset,
                    change.commit_time.isoformat(),
                    change.table,
                    change.operation,
                    json.dumps(change.key, default=str),
                    json.dumps(change.before, default=str),
                    json.dumps(change.after, default=str),
                    change.source.xid,
                ),
            )
    trail.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
