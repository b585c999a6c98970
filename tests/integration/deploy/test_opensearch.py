"""The local OpenSearch node keeps its documents over a crash."""

import pytest
from opensearchpy import OpenSearch as Client

from deploy.local.opensearch import OpenSearch

pytestmark = pytest.mark.opensearch


def test_documents_outlive_a_crash(opensearch: OpenSearch, index_prefix: str) -> None:
    client = Client(hosts=[opensearch.url])
    client.index(index=index_prefix, id="1", body={"a": 1}, params={"refresh": "true"})
    opensearch.kill()
    opensearch.start()
    client.cluster.health(index=index_prefix, params={"wait_for_status": "yellow"})
    assert client.get(index=index_prefix, id="1")["_source"] == {"a": 1}
    client.indices.delete(index=index_prefix)
