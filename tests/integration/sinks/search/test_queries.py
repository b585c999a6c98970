"""`millrace search`: it also searches embedded rows, and reports a malformed query."""

import pytest

from cdc.errors import ConfigError
from cdc.settings import SearchSettings
from deploy.local.opensearch import OpenSearch
from sinks.search.client import connect, search

pytestmark = pytest.mark.opensearch
MAPPING = {
    "properties": {
        "name": {"type": "text"},
        "url": {"type": "text"},
        "crew": {
            "type": "nested",
            "properties": {
                "name": {"type": "text"},
                "age": {"type": "integer"},
                "medal": {"type": "nested", "properties": {"year": {"type": "integer"}}},
            },
        },
    }
}
DOCUMENTS = {
    "1": {"name": "Pinta", "crew": [{"name": "Ana", "age": 40}, {"name": "Bo", "age": 20}]},
    "2": {"name": "Nina", "crew": [{"name": "Ana", "age": 20, "medal": [{"year": 1492}]}]},
    "3": {"name": "Ana", "crew": [], "url": "http://ships/3"},
}


def test_embedded_rows_are_searched_and_a_malformed_query_says_so(
    opensearch: OpenSearch, topic_prefix: str
) -> None:
    settings = SearchSettings.model_validate({"url": opensearch.url, "index.prefix": topic_prefix})
    client = connect(settings)
    client.indices.create(index=f"{topic_prefix}ships", body={"mappings": MAPPING})
    for id_, document in DOCUMENTS.items():
        client.index(index=f"{topic_prefix}ships", id=id_, body=document)
    client.indices.refresh(index=f"{topic_prefix}ships")

    def found(query: str) -> set[str]:
        return {hit["_id"] for hit in search(settings, "ships", query).hits}

    assert found("crew.name:ana") == {"1", "2"}
    assert found("crew.name:ana AND crew.age:>30") == {"1"}  # of one row
    assert found("crew.medal.year:1492") == {"2"}
    assert found("ana") == {"1", "2", "3"}
    assert found("name:ana") == {"3"}
    assert found("NOT name:nina") == {"1", "3"}
    assert found('"http://ships/3"') == {"3"}
    for malformed in ("(ana", "name:", "a AND", "crew.age:[1 TO", "a/b"):
        with pytest.raises(ConfigError, match="the query isn't valid: ") as refused:
            search(settings, "ships", malformed)
        assert len(str(refused.value).splitlines()) == 2
    client.indices.delete(index=f"{topic_prefix}ships")
