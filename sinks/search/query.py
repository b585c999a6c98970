"""An index and a query string → the best hits, for a look at what the search jobs wrote."""

from typing import Any, Final, NamedTuple

from opensearchpy import NotFoundError, OpenSearchException, RequestError

from cdc.errors import ConfigError, SinkError
from cdc.settings import SearchSettings
from sinks.search.client import connect, explain, reason_of, server
from sinks.search.documents import index_name

LIMIT: Final = 10


class Found(NamedTuple):
    """How many documents match, and the best of them with ``_id``, ``_score`` and their fields."""

    total: int
    hits: list[dict[str, Any]]


def search(settings: SearchSettings, index: str, query: str, limit: int = LIMIT) -> Found:
    """Search an index, named by a table or with or without ``index.prefix``, in Lucene's syntax.

    A query that isn't valid syntax is searched for as plain words.
    """
    client = connect(settings)
    prefix = settings.index_prefix
    name = index_name("" if index.startswith(prefix) else prefix, index)
    words = {"query_string": {"query": query, "lenient": True, "default_operator": "and"}}
    plain = {"simple_query_string": {"query": query, "lenient": True}}
    try:
        try:
            answer = client.search(index=name, body=_body(words, limit))
        except RequestError:
            answer = client.search(index=name, body=_body(plain, limit))
    except NotFoundError:
        raise ConfigError(
            f"there is no index {name}",
            where=server(settings),
            remedy="`millrace status` lists the indexes; one that isn't there yet comes with the"
            " next `millrace merge search`",
        ) from None
    except RequestError as failure:
        raise SinkError(f"not a query: {reason_of(failure)}", where=f"index {name}") from None
    except OpenSearchException as failure:
        raise explain(failure, server(settings)) from None
    found = answer["hits"]
    hits = [{"_id": hit["_id"], "_score": hit["_score"], **hit["_source"]} for hit in found["hits"]]
    return Found(int(found["total"]["value"]), hits)


def _body(query: dict[str, Any], limit: int) -> dict[str, Any]:
    return {"query": query, "size": limit, "track_total_hits": True}
