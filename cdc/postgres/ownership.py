"""A publication → whether Millrace made it, as its comment says.

It names the log, and not the slot: another ``slot.name`` leaves the publication Millrace's own.
The comment comes in the transaction that makes the publication, and goes with it: one of the same
name that somebody makes later hasn't it. https://www.postgresql.org/docs/current/sql-comment.html
"""

from typing import Final

import psycopg

from cdc.postgres.connection import query
from cdc.records.sql_names import quote
from cdc.settings import CaptureSettings

_COMMENT: Final = """
SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s
"""


def comment_statement(settings: CaptureSettings) -> str:
    """SQL that says that the publication is this capture's own."""
    return f"COMMENT ON PUBLICATION {quote(settings.publication_name)} IS '{_text(settings)}';"


def is_own(connection: psycopg.Connection, settings: CaptureSettings) -> bool:
    """Whether there is such a publication, and this capture has made it."""
    rows = query(connection, _COMMENT, [settings.publication_name])
    return rows == [(_text(settings),)]


# A prefix can't have a quote in it.
def _text(settings: CaptureSettings) -> str:
    return f"made by Millrace: topic.prefix {settings.topic_prefix}"
