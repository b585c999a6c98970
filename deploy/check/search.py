"""[search] → the server, rights, names of indexes, and room for their fields and shards."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from opensearchpy import OpenSearch, OpenSearchException, TransportError

from cdc.errors import MillraceError, SinkError
from cdc.postgres.described import TableDescription
from cdc.settings import SearchSettings
from deploy.check.applied import APPLIED, applied_of_log, goes_on_with_tables
from deploy.check.result import Area, CheckResult, Unanswered
from deploy.check.scene import Scene, captured_of
from deploy.status.sinks import left_tables
from sinks.run.wanted import CapturedTables, wanted_in_search
from sinks.search.client import blocked, check, connect, explain, server
from sinks.search.documents import Aliases, aliases, fields_of
from sinks.search.indexes import TableIndex, flat
from sinks.search.progress import Ledger

TIMEOUT_S: Final = 4.0
_OLDEST: Final = {"opensearch": 1, "elasticsearch": 7}
_FIELDS: Final = "mapping.total_fields.limit"
_SHARDS_MAX: Final = "cluster.max_shards_per_node"
_SHARDS_OF_INDEX: Final = 2
"""A new index has one, and a copy if there are nodes for it."""
_PRIVILEGES: Final = ["create_index", "manage", "read", "write", "delete"]
_NO_HANDLER: Final = frozenset({400, 404, 405})
_REFUSED: Final = frozenset({401, 403})
_ALL: Final = "all_access"


def check_search(scene: Scene) -> Iterator[CheckResult]:
    """Check the whole search server."""
    settings = scene.settings.search
    if settings is None:
        return
    part = Area("search")
    client = connect(settings, TIMEOUT_S)
    try:
        search_server = check(client, settings)
    except SinkError as error:
        yield part.of_error("connection", error)
        yield part.unknown("everything else", "there is no connection")
        return
    yield from _Search(scene, settings, client, part, search_server).findings()


@dataclass
class _Search:
    """One check of a server that answers."""

    scene: Scene
    settings: SearchSettings
    client: OpenSearch
    part: Area
    version: str

    def findings(self) -> Iterator[CheckResult]:
        """Check the server, and then the tables' indexes."""
        part = self.part
        yield part.ok("connection", f"{self.version} at {server(self.settings)}")
        yield part.tried("version", self._version, "OpenSearch, or Elasticsearch 7 or newer")
        yield part.tried("rights", self._rights)
        yield part.tried("blocks", self._blocks)
        health = self._ask(self.client.cluster.health)
        yield part.tried("health", partial(self._health, health))
        tables = self.scene.tables.get()
        if tables is None:
            yield part.unknown("indexes", "the captured tables are unknown")
            return
        captured = captured_of(self.scene.settings.capture, tables)
        keyed = [table for table in tables if str(table.name) in captured.keyed]
        named = aliases(self.settings, captured.with_key)
        for error in named.refused.values():
            yield part.of_error("names of indexes", error)
        if not named.refused:
            yield part.ok(
                "names of indexes", f"{len(named.by_name)} indexes, each with a name of its own"
            )
        yield from self._applied(named, captured)
        yield from self._fields(keyed)
        yield part.tried("shards", partial(self._shards, health, named))

    def _applied(self, named: Aliases, captured: CapturedTables) -> Iterator[CheckResult]:
        """Check whether runs of this log can continue the existing indexes, by their own checks."""
        prefix = self.scene.settings.capture.topic_prefix
        try:
            record = Ledger(self.client, self.settings.index_prefix, prefix).run()
        except MillraceError as error:
            yield self.part.of_error(APPLIED, error)
        else:
            if record.plan is None:
                yield self.part.ok(APPLIED, "nothing yet")
            else:
                yield from applied_of_log(self.part, self.scene, record.plan)
            before = left_tables(record.plan, record.outcome)
            wanted = wanted_in_search(self.settings, captured)
            yield from goes_on_with_tables(self.part, self.scene, before, wanted)
        found = "other programs use none of these index names"
        yield from self.part.of_errors("indexes of others", self._strangers(named, prefix), found)

    def _strangers(self, named: Aliases, prefix: str) -> Iterator[MillraceError]:
        """Yield the indexes or aliases whose names a load of ours would refuse to take."""
        answer = self._ask(partial(self.client.indices.get_alias, index=self._all))
        taken = {*answer} if isinstance(answer, dict) else {*named.by_name.values()}
        taken |= {alias for name in taken for alias in _aliases_of(answer, name)}
        documents = {document.name for document in self.settings.documents}
        for name, alias in named.by_name.items():
            if alias in taken:
                kind: Literal["table", "document"] = "document" if name in documents else "table"
                try:
                    TableIndex(self.client, alias, prefix, name, kind).refuse_strangers()
                except MillraceError as error:
                    yield error

    def _version(self) -> str:
        kind, _, number = self.version.partition(" ")
        if int(number.partition(".")[0] or 0) < _OLDEST.get(kind, 1):
            raise SinkError(
                f"Millrace doesn't support {self.version}, which is too old",
                where=server(self.settings),
                remedy="upgrade it",
            )
        return self.version

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer, or the status that refused it. Raise SinkError otherwise."""
        try:
            return question()
        except TransportError as failure:
            if failure.status_code in _REFUSED | _NO_HANDLER:
                return failure.status_code
            raise explain(failure, server(self.settings)) from None
        except OpenSearchException as failure:
            raise explain(failure, server(self.settings)) from None

    def _rights(self) -> str | Unanswered:
        if self.version.startswith("elasticsearch"):
            return self._rights_of_elasticsearch()
        url = "/_plugins/_security/authinfo"
        answer = self._ask(lambda: self.client.transport.perform_request("GET", url))
        if answer in _NO_HANDLER:
            return "the server doesn't check rights"
        if isinstance(answer, dict) and _ALL in answer.get("roles", ()):
            return f"the user has {_ALL}"
        return Unanswered(
            "OpenSearch doesn't report the rights of a role",
            f"allow the user to create indexes and aliases named {self.settings.index_prefix}*,"
            " and to read, write and delete documents in them; the first `millrace merge search`"
            " tries it",
        )

    def _rights_of_elasticsearch(self) -> str | Unanswered:
        body = {"index": [{"names": [self._all], "privileges": _PRIVILEGES}]}
        url = "/_security/user/_has_privileges"
        answer = self._ask(lambda: self.client.transport.perform_request("POST", url, body=body))
        if answer in _NO_HANDLER:
            return "the server doesn't check rights"
        if not isinstance(answer, dict):
            return Unanswered("the server doesn't report the user's rights")
        if answer.get("has_all_requested"):
            return f"the user has all needed rights on {self._all}"
        has = answer.get("index", {}).get(self._all, {})
        lacking = [name for name in _PRIVILEGES if not has.get(name)]
        raise SinkError(
            f"the user lacks {', '.join(lacking)} on indexes {self._all}",
            where=server(self.settings),
            remedy="give its role these privileges on them",
        )

    @property
    def _all(self) -> str:
        return f"{self.settings.index_prefix}*"

    def _blocks(self) -> str | Unanswered:
        params = {"flat_settings": "true", "ignore_unavailable": "true"}
        ask = partial(self.client.indices.get_settings, index=self._all, params=params)
        answer = self._ask(ask)
        if not isinstance(answer, dict):
            return Unanswered("the server doesn't show the settings of indexes")
        for name, index in sorted(answer.items()):
            for block in ("index.blocks.read_only_allow_delete", "index.blocks.write"):
                if str(index.get("settings", {}).get(block, "")).lower() == "true":
                    raise blocked(f"{name} has {block}", server(self.settings))
        return f"none of {len(answer)} indexes is read-only"

    def _health(self, health: Any) -> str | Unanswered:
        if not isinstance(health, dict):
            return Unanswered("the server doesn't report its health")
        if health["status"] == "red":
            raise SinkError(
                "the cluster's health is red: shards are missing",
                where=server(self.settings),
                remedy="read the server's log and _cluster/allocation/explain",
            )
        return f"{health['status']}, {health['number_of_data_nodes']} data nodes"

    def _fields(self, tables: list[TableDescription]) -> Iterator[CheckResult]:
        """Check the user's own limit of fields against a table's columns."""
        is_right = True
        for table in tables:
            name = str(table.name)
            try:
                fields_of(table.name, table.columns)
            except SinkError as error:
                is_right = False
                yield self.part.of_error("fields", error)
            limit = flat(self.settings.index_of(name).settings).get(_FIELDS)
            if limit is not None and int(limit) < len(table.columns):
                is_right = False
                too_many = SinkError(
                    f"table {name} has {len(table.columns)} columns, more than the limit of its"
                    f" index: {limit}",
                    where="[[search.indexes]]",
                    remedy=f"raise {_FIELDS} in settings, or remove it there",
                )
                yield self.part.of_error("fields", too_many)
        if is_right:
            widest = max((len(table.columns) for table in tables), default=0)
            yield self.part.ok(
                "fields", f"{widest} at most; each new index gets a sufficient limit"
            )

    def _shards(self, health: Any, named: Aliases) -> str | Unanswered:
        params = {"include_defaults": "true", "flat_settings": "true"}
        answer = self._ask(partial(self.client.cluster.get_settings, params=params))
        if not isinstance(answer, dict) or not isinstance(health, dict):
            return Unanswered("the server doesn't show the cluster's settings")
        sections = (answer.get(name, {}) for name in ("transient", "persistent", "defaults"))
        limits = [section[_SHARDS_MAX] for section in sections if _SHARDS_MAX in section]
        if not limits:
            return Unanswered(f"the server doesn't show {_SHARDS_MAX}")
        room = int(limits[0]) * int(health["number_of_data_nodes"]) - int(health["active_shards"])
        needed = _SHARDS_OF_INDEX * (len(named.by_name) + 2)
        if room < needed:
            raise SinkError(
                f"new indexes need {needed} shards, but the cluster has room for {room}",
                where=server(self.settings),
                remedy=f"raise {_SHARDS_MAX}, add a node, or index fewer tables (tables in"
                " [search])",
            )
        return f"room for {room}; new indexes need at most {needed}"


def _aliases_of(answer: Any, name: str) -> Iterable[str]:
    """Return the aliases of an index, as far as the server lists them."""
    return answer.get(name, {}).get("aliases", ()) if isinstance(answer, dict) else ()
