"""A table that is set aside → it keeps its rows at each cut, until it was read again."""

import pytest

from cdc.errors import ExitCode
from cdc.records.state import Doubt, Phase
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.proof
def test_a_table_that_is_set_aside_keeps_its_rows_and_holds_up_no_other(
    lakehouse: Lakehouse,
) -> None:
    columns = column("id", "int4", 1), column("v", "text")
    log = lakehouse.log(*columns)
    other = log.beside(table_schema(log.prefix, "other", *columns))
    for each in (log, other):
        each.row("r", at(100, 0), {"id": 1, "v": "first"})
        each.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()
    aside = Doubt(reason="it has no key", since_ms=1, replaces=True, set_aside=True)
    log.row("u", at(200, 1), {"id": 1, "v": "right before"})
    log.table(100, doubt=aside)
    # Of a table that could never be captured there is no topic.
    log.table(0, Phase.CREATING, doubt=aside, table="never", topic=f"{log.prefix}.public.never")
    other.row("u", at(300, 1), {"id": 1, "v": "later"})
    log.reached(at(300, 1))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.read("public.t", "id", "v") == [(1, "right before")]
    assert lakehouse.read("public.other", "id", "v") == [(1, "later")]
    log.truncate(at(400, 0))
    log.table(400, Phase.SNAPSHOT, doubt=aside.model_copy(update={"set_aside": False}))
    log.row("c", at(500, 1), {"id": 3, "v": "streamed"})
    log.reached(at(500, 1))
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    assert lakehouse.read("public.t", "id", "v") == [(1, "right before")]
    log.row("r", at(600, 0), {"id": 2, "v": "read"})
    log.table(600)
    log.reached(at(600, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert sorted(lakehouse.read("public.t", "id", "v")) == [(2, "read"), (3, "streamed")]
