"""A publication → whether Millrace created it, as its comment says.

The comment names the log, not the slot. So with another ``slot.name`` the publication is still
Millrace's own. The comment is written in the transaction that creates the publication, and is
dropped with it. A later publication of the same name doesn't have it.
https://www.postgresql.org/docs/current/sql-comment.html
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
    """Return SQL that marks the publication as this capture's own."""
    return f"COMMENT ON PUBLICATION {quote(settings.publication_name)} IS '{_text(settings)}';"


def is_own(connection: psycopg.Connection, settings: CaptureSettings) -> bool:
    """Whether the publication exists, and this capture has created it."""
    rows = query(connection, _COMMENT, [settings.publication_name])
    return rows == [(_text(settings),)]


# A prefix can't contain a quote.
def _text(settings: CaptureSettings) -> str:
    return f"made by Millrace: topic.prefix {settings.topic_prefix}"
