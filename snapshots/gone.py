"""A table that is gone at the source → what its user reads of it."""

import structlog

from cdc.postgres.failures import quote
from cdc.postgres.fingerprints import CatalogTable
from cdc.records.state import TableState
from cdc.settings import CaptureSettings

log = structlog.get_logger()


def tell_gone(state: TableState, renamed: CatalogTable | None, settings: CaptureSettings) -> None:
    """Say what becomes of a table that is gone, and what its user can do."""
    told = {"table": str(state.name), "derived": "rows stay, or go as table.drop.policy says"}
    if renamed is None:
        log.warning("a table was dropped", **told)
    else:
        new_name = str(renamed.name)
        told |= {"renamed_to": new_name}
        if not settings.captures(new_name):
            told |= {"reason": "the lists leave the new name out: it isn't captured any more"}
            if renamed.entry and settings.publication_autocreate_mode == "filtered":
                # As long as it is published, no start finds what the lists ask for.
                publication = quote(settings.publication_name)
                table = ".".join(map(quote, renamed.name))
                alter = f"ALTER PUBLICATION {publication} DROP TABLE ONLY {table};"
                told |= {"before_the_next_start": alter}
        elif not renamed.entry:
            told |= {"reason": "it isn't published under its new name: add it"}
        else:
            told |= {"reason": "it is read under its new name"}
        log.warning("a table was renamed", **told)
    if state.is_name_taken:
        log.warning(
            "another table has the name of one that is gone, and isn't published",
            table=str(state.name),
            remedy="add it to the publication: it is read in place of the one that is gone",
        )
