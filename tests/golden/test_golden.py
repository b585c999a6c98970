"""Every recorded case of a real Debezium, run against the daemon under its preset.

All selected cases run side by side, on one server and one broker, from the first test on. A test is
one case's outcome. A case that doesn't pass yet is listed in pending.py, and fails here once it
passes. `make proof` runs the cases in ``VALUES``, and `make test` only a few of them:
tests/integration/cdc/values/test_values_against_golden.py reads the values of all. `make proof`
also runs ``VARIANTS``.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from tests.fixtures.kafka import admin_of, delete_topics
from tests.golden.case import CASES, Case, find
from tests.golden.pending import REASONS
from tests.golden.runner import PARALLEL, Outcome, Runner

pytestmark = [
    pytest.mark.native("it starts, kills and wipes servers of its own"),
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("golden"),
]
ALL = {case.name: case for case in find(CASES)}
VALUES: Final = (
    *("types_*", "time_*", "timetz_*", "decimal_double", "decimal_string", "numeric_special_*"),
    *("interval_string", "strings_json"),
)
"""Cases that are about how values are written."""
FEW: Final = {"types_arrays", "types_temporal"}
VARIANTS: Final = (
    *("column_exclude", "column_mask_truncate", "ddl_rapid", "ddl_same_tx", "decimal_format_*"),
    *("generated_*", "incremental_snapshot", "incremental_snapshot_insert_delete_watermark"),
    *("logical_message_filter_txmeta", "null_vs_default_*", "outbox_expand*"),
    *("partition_root_false", "partition_root_true_all_*", "pk_update_no_tombstones"),
    *("schemas_isostring_double", "schemas_nanoseconds", "schemas_temporal_*"),
    *("skipped_operations_u_d", "snapshot_all_empty", "snapshot_initial_only"),
    *("snapshot_last_table_empty", "snapshot_single_row", "snapshot_txmeta", "time_connect_*"),
    *("toast_full", "toast_placeholder_hex", "topic_routing_regex", "truncate_default_skipped"),
    *("txn_no_metadata", "types_misc_default", "unwrap_delete_to_tombstone", "unwrap_drop"),
    *("unwrap_rewrite*", "unwrap_tombstone"),
)
"""Cases near another one, by an option or in kind: `make test` has the other one."""


def _param(name: str) -> object:
    reason = REASONS.get(name)
    marks = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
    if name not in FEW and any(fnmatch(name, pattern) for pattern in (*VALUES, *VARIANTS)):
        marks.append(pytest.mark.proof)
    return pytest.param(name, marks=marks, id=name)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    kafka_of_the_run: Kafka,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[Outcome]]]:
    """Run the cases of the tests that were selected, several at a time."""
    folder: Path = tmp_path_factory.mktemp("golden")
    runner = Runner(postgres, kafka_of_the_run, folder)
    selected = [
        ALL[str(item.callspec.params["name"])]
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        if item.path == Path(__file__)
    ]
    with ThreadPoolExecutor(PARALLEL) as executor:
        yield {case.name: executor.submit(runner.run, case) for case in selected}
        executor.shutdown(cancel_futures=True)
    delete_topics(admin_of(kafka_of_the_run), *{Case.read(folder).prefix for folder in selected})


@pytest.mark.parametrize("name", [_param(name) for name in ALL])
def test_events_are_those_of_debezium(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    outcome = outcomes[name].result()
    assert outcome.passed, str(outcome)


def test_nothing_is_pending_that_is_no_case() -> None:
    assert set(REASONS) <= set(ALL)
