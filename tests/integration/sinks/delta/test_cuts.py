"""Cuts: every table as it was at one instant of the source, found by run, LSN or time."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from cdc.errors import ConfigError, SinkError
from sinks.changes.derived import derived_tables
from sinks.delta.cuts import Cut, cut_at, cuts
from sinks.delta.query import query
from sinks.job import run_lakehouse
from sinks.run.plans import lakehouse_plans
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, run_once, table_schema
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def all_cuts(lakehouse: Lakehouse) -> list[Cut]:
    return cuts(lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark))


def answer(lakehouse: Lakehouse, cut: Cut, sql: str) -> list[tuple[object, ...]]:
    assert lakehouse.settings.lakehouse is not None
    derived = derived_tables(lakehouse.settings.lakehouse, ["public.t", "public.Odd-name"])
    return [tuple(row) for row in query(lakehouse.spark, derived, cut, sql).collect()]


@pytest.mark.proof
def test_a_query_sees_all_tables_at_one_cut(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    odd = log.beside(table_schema(lakehouse.prefix, "Odd-name", column("id", "int4", 1)))
    log.row("r", at(10, 0), {"id": 1, "n": 1})
    odd.row("r", at(10, 0), {"id": 1})
    log.table(10)
    odd.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    log.row("u", at(30), {"id": 1, "n": 3})
    odd.row("c", at(30, 2), {"id": 2})
    log.reached(at(30, 2))
    lakehouse.merge()

    first, second = found = all_cuts(lakehouse)
    assert [cut.position for cut in found] == [at(10, 0), at(30, 2)]
    assert [cut.missing for cut in found] == [[], []]
    both = "SELECT max(n), (SELECT count(*) FROM public.odd_name) FROM T"
    assert answer(lakehouse, first, both) == [(1, 1)]
    assert answer(lakehouse, second, both) == [(3, 2)]

    plans = lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark)
    assert cut_at(plans, "latest") == second
    assert cut_at(plans, "1") == first
    assert cut_at(plans, "0/1D") == first, "the newest that isn't later"
    assert cut_at(plans, str(at(30, 2))) == second
    with pytest.raises(SinkError, match="no cut has reached"):
        cut_at(plans, "0/2000")
    with pytest.raises(SinkError, match="no cut is as old"):
        cut_at(plans, "0/5")
    with pytest.raises(ConfigError, match="isn't an instant"):
        cut_at(plans, "yesterday")
    for change in ("DROP TABLE t", "INSERT INTO t SELECT 1, 2"):
        with pytest.raises(ConfigError, match="only queries"):
            answer(lakehouse, second, change)


@pytest.mark.proof
def test_a_cut_keeps_its_rows_though_a_table_is_idle_or_compacted_by_others(
    lakehouse: Lakehouse,
) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    odd = log.beside(table_schema(lakehouse.prefix, "Odd-name", column("id", "int4", 1)))
    odd.row("r", at(5, 0), {"id": 1})
    for each in (log, odd):
        each.table(5)
    for lsn in (10, 20, 30):
        log.row("c", at(lsn), {"id": lsn, "n": lsn})
        log.reached(at(lsn))
        lakehouse.merge()
    lakehouse.spark.sql(f"OPTIMIZE delta.`{lakehouse.folder}/public/t`")
    both = "SELECT max(n), (SELECT count(*) FROM public.odd_name) FROM T"
    answers = [answer(lakehouse, cut, both) for cut in all_cuts(lakehouse)]
    assert answers == [[(10, 1)], [(20, 1)], [(30, 1)]]


@pytest.mark.proof
def test_a_partition_whose_marker_comes_late_is_waited_for(lakehouse: Lakehouse) -> None:
    """As with several brokers, where a transaction is shown partition by partition.

    Here its rest is a transaction of its own, which is open while the cut is to be seen already.
    """
    log = lakehouse.log(column("id", "int4", 1))
    odd = log.beside(table_schema(lakehouse.prefix, "Odd-name", column("id", "int4", 1)))
    log.table(10)
    odd.table(10)
    log.reached(at(10, 0))
    log.row("c", at(20, 1), {"id": 1})
    rest = odd.apart()
    rest.row("c", at(20, 2), {"id": 2})
    rest.flush()
    log.reached(at(20, 2))

    told: list[str] = []
    run = partial(run_once, run_lakehouse, lakehouse.settings, lakehouse.spark)
    with ThreadPoolExecutor(1) as threads:
        merging = threads.submit(run, told.append)
        wait_for(lambda: merging.done() or any("open Kafka transaction" in one for one in told))
        assert not merging.done()
        rest.commit()
        assert merging.result(120).tables
    (cut,) = all_cuts(lakehouse)
    assert cut.position == at(20, 2)
    assert answer(lakehouse, cut, "SELECT count(*), (SELECT max(id) FROM odd_name) FROM t") == [
        (1, 2)
    ]


@pytest.mark.proof
def test_a_table_that_failed_is_not_at_the_cut(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("d", "date"))
    odd = log.beside(table_schema(lakehouse.prefix, "Odd-name", column("id", "int4", 1)))
    log.row("r", at(10, 0), {"id": 1, "d": 1})
    odd.row("r", at(10, 0), {"id": 1})
    log.table(10)
    odd.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    log.row("u", at(20), {"id": 1, "d": 2**31 - 1})
    odd.row("c", at(20, 2), {"id": 2})
    log.reached(at(20, 2))
    lakehouse.merge()
    cut = all_cuts(lakehouse)[-1]
    assert (cut.missing, [*cut.versions]) == (["public.t"], ["public.Odd-name"])
    assert answer(lakehouse, cut, "SELECT count(*) FROM odd_name") == [(2,)]
    with pytest.raises(SinkError, match=r"public\.t: not at this cut"):
        answer(lakehouse, cut, "SELECT * FROM t")
