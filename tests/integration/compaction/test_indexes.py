"""A real index with many overwritten documents -> a smaller one, or an unchanged one."""

import time

import pytest

from compaction.indexes import compact
from deploy.local.opensearch import OpenSearch
from sinks.search.bulk import write
from tests.fixtures.search_tables import TABLE, Target, upsert

pytestmark = pytest.mark.opensearch


@pytest.fixture
def target(opensearch: OpenSearch, index_prefix: str) -> Target:
    target = Target(opensearch.url, index_prefix)
    # Leftovers stay until we merge: the server's own merges would make this a race.
    policy = {"index.merge.policy.deletes_pct_allowed": 50}
    target.client.indices.put_settings(index=target.index, body=policy)
    return target


def fill(target: Target, version: int, keys: range) -> None:
    actions = [upsert(f"k{key}", version, '"big":"some words"') for key in keys]
    write(target.client, target.write_alias, actions, bulk_bytes=1 << 20)
    target.table_index.refresh(target.index)


@pytest.mark.proof
def test_index_with_many_deleted_documents_is_merged(target: Target) -> None:
    fill(target, 1, range(2_000))
    fill(target, 2, range(900))
    # What was deleted in the last 30 seconds is kept for replicas: nothing happens before that.
    (merge,) = compact(target.settings, [TABLE], deleted_min=100, dry_run=True)
    assert "worth merging" in str(merge)
    deadline = time.monotonic() + 90
    while (merge := next(compact(target.settings, [TABLE], deleted_min=100))).after is None or (
        merge.after.deleted
    ):
        assert time.monotonic() < deadline
        time.sleep(2)
    assert merge.index == target.alias
    assert merge.before.documents == merge.after.documents == 2_000
    assert merge.before.deleted_share > 0.1
    assert merge.after.size_bytes < merge.before.size_bytes


@pytest.mark.proof
def test_index_with_few_deleted_documents_is_left_alone(target: Target) -> None:
    fill(target, 1, range(2_000))
    fill(target, 2, range(100))
    (merge,) = compact(target.settings, [TABLE], deleted_min=10)
    assert merge.after is None
    assert merge.before.documents == 2_000


def test_table_without_an_index_is_passed_over(opensearch: OpenSearch, target: Target) -> None:
    target.client.indices.delete(index=target.index)
    assert list(compact(target.settings, [TABLE])) == []
