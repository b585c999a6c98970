"""A mapping → an index behind its alias: created, loaded, extended, published, emptied.

A table's documents are in ``<alias>-<generation>``, behind ``<alias>`` once they are complete. A
new generation is loaded next to the old one and takes over the alias in one step. Writes use a
second alias, ``<alias>-<generation>-write``. With ``require_alias`` the server doesn't create an
index after ours was deleted, or for an interrupted run that still writes to an old one.

``index.gc_deletes`` is an hour: for this time the server itself knows the versions of deleted
documents and refuses a late, older write. After it, a run's plan protects them: changes that aren't
newer than the table's cut are never sent.
"""

import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from opensearchpy import NotFoundError, OpenSearch, RequestError
from pydantic import BaseModel, ConfigDict

from cdc.errors import SinkError
from cdc.records.position import Position
from sinks.search.client import IF_THERE, SearchResponse, create_index, insist
from sinks.search.documents import POSITION_FIELD

_GC_DELETES: Final = "1h"
_FIELDS_SPARE: Final = 1_000  # the server's own default limit
_LOADING: Final = {"refresh_interval": "-1", "number_of_replicas": 0}
_SERVING: Final = {"refresh_interval": "-1", "auto_expand_replicas": "0-1"}
"""The writer refreshes at the end, so that a run's documents become visible together."""
_SERVING_ONLY: Final = ("refresh_interval", "number_of_replicas", "auto_expand_replicas")
"""Settings with other values during a load. They are set once the index serves."""
_TASK_POLL_S: Final = 0.2
_TASK_POLL_S_MAX: Final = 5.0


def _fields(inside: Mapping[str, Any]) -> int:
    """Return the number of fields for the index, including nested ones."""
    named = [*inside.get("properties", {}).values(), *inside.get("fields", {}).values()]
    return len(named) + sum(map(_fields, named))


def flat(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return settings of an index by their full names, without the prefix ``index.``."""
    flattened: dict[str, Any] = {}
    for name, value in settings.items():
        whole = f"{path}{name}"
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{whole}.")
        else:
            flattened[whole.removeprefix("index.")] = value
    return flattened


def write_alias(index: str) -> str:
    """Return the alias for writes to an index."""
    return f"{index}-write"


def alias_of(index: str) -> str:
    """Return the alias that an index of ours is, or will be, behind."""
    return index.rpartition("-")[0]


class Generation(BaseModel):
    """An index of ours: its name, and its id, which a new index of that name doesn't share.

    A table or a document has one that serves behind the alias, and may have one that is loaded to
    replace it.
    """

    model_config = ConfigDict(frozen=True)

    index: str
    uuid: str

    def __str__(self) -> str:
        return self.index


def _number(index: str) -> int:
    """Return its number among all generations of the alias."""
    return int(index.rpartition("-")[2])


def indexes_of(client: OpenSearch, pattern: str, owner: Mapping[str, str]) -> list[str]:
    """Return our indexes that match the pattern and belong to a ``log`` (topic prefix) or table."""
    mappings = insist(
        lambda: client.indices.get_mapping(index=pattern, params={"allow_no_indices": "true"}),
        f"indexes {pattern}",
    )
    return sorted(
        name
        for name, about in mappings.items()
        if owner.items() <= about["mappings"].get("_meta", {}).get("millrace", {}).items()
    )


class TableIndex:
    """The indexes of one table. ``log`` (the topic prefix) and its name identify the owner.

    With ``kind``, those of joined documents.
    """

    def __init__(
        self,
        client: OpenSearch,
        alias: str,
        log: str,
        name: str,
        kind: Literal["table", "document"] = "table",
    ) -> None:
        self.alias = alias
        self._client = client
        self._owner = {"log": log, kind: name}
        self.what = f"{kind} {name}"

    def make(
        self,
        mapping: Mapping[str, Any],
        after: Generation | None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> Generation:
        """Create an empty index, the next generation, with settings for a fast load."""
        self.refuse_strangers()
        before, serving = self.generations(), self._aliased()
        taken = [_number(name) for name in before]
        number = 1 + max([_number(after.index) if after is not None else 0, *taken])
        self._delete([name for name in before if name not in serving])  # loads that failed
        index = f"{self.alias}-{number}"
        body = {
            "settings": {
                "index": {
                    "gc_deletes": _GC_DELETES,
                    "mapping.total_fields.limit": _fields(mapping) + _FIELDS_SPARE,
                    **{
                        name: value
                        for name, value in flat(settings).items()
                        if name not in _SERVING_ONLY
                    },
                    **_LOADING,
                }
            },
            "mappings": {**mapping, "_meta": {"millrace": self._owner}},
            "aliases": {write_alias(index): {}},
        }

        create_index(self._client, index, body, f"index {self.alias}")
        made = Generation(index=index, uuid=self._uuid(index) or "")
        self.require(made)
        return made

    def is_there(self, generation: Generation | None) -> bool:
        """Whether the index exists, and wasn't replaced by another one of its name."""
        return generation is not None and self._uuid(generation.index) == generation.uuid

    def require(self, generation: Generation) -> None:
        """Raise SinkError if the index no longer exists."""
        if not self.is_there(generation):
            raise SinkError(
                "the index was deleted while a run wrote to it",
                where=f"{self.what}, index {generation}",
                remedy="none: the next run loads a new one",
            )

    def has_taken_over(self, generation: Generation) -> bool:
        """Whether a loaded index already serves, as the run may have died before recording it."""
        return self.is_there(generation) and self._aliased() == [generation.index]

    def _uuid(self, index: str) -> str | None:
        answer = self._ask(lambda: self._client.indices.get_settings(index=index, params=IF_THERE))
        return str(answer[index]["settings"]["index"]["uuid"]) if index in answer else None

    def extend(self, index: str, mapping: Mapping[str, Any]) -> bool:
        """Add the fields of new columns. False: they don't fit, as one has another type now."""
        limit = "index.mapping.total_fields.limit"
        before = self._ask(
            lambda: self._client.indices.get_settings(
                index=index, name=limit, params={"flat_settings": "true"}
            )
        )
        fields_max = int(before.get(index, {}).get("settings", {}).get(limit, 0))
        if (needed := _fields(mapping) + _FIELDS_SPARE) > fields_max:
            self._ask(lambda: self._client.indices.put_settings(index=index, body={limit: needed}))

        def fits() -> bool:
            try:
                self._client.indices.put_mapping(index=index, body=mapping)
            except RequestError:  # 400; a missing right or room is no reason for a new index
                return False
            return True

        return self._ask(fits)

    def publish(
        self,
        index: str,
        settings: Mapping[str, Any] = MappingProxyType({}),
        former: Generation | None = None,
    ) -> None:
        """Put a loaded index behind the alias, and delete the earlier ones.

        The ``former`` one is deleted in the same step if it has another alias, as no later run
        would delete it.
        """
        self.refuse_strangers()
        chosen = {name: value for name, value in flat(settings).items() if name in _SERVING_ONLY}
        if "number_of_replicas" in chosen:
            chosen.setdefault("auto_expand_replicas", "false")
        body = {"index": {**_SERVING, **chosen}}
        self._ask(lambda: self._client.indices.put_settings(index=index, body=body))
        self.refresh(index)
        before = [name for name in self.generations() if name != index]
        remove = [{"remove": {"index": name, "alias": self.alias}} for name in self._aliased()]
        actions = [*remove, {"add": {"index": index, "alias": self.alias}}]
        if former and alias_of(former.index) != self.alias and self.is_there(former):
            actions.append({"remove_index": {"index": former.index}})
        self._ask(lambda: self._client.indices.update_aliases(body={"actions": actions}))
        self._delete(before)

    def count(self) -> int | None:
        """Return how many documents the serving index has. None: none serves."""
        serving = self._aliased()
        return (
            int(self._ask(lambda: self._client.count(index=serving))["count"]) if serving else None
        )

    def refresh(self, index: str) -> None:
        """Make all earlier writes visible to searches."""
        self._ask(lambda: self._client.indices.refresh(index=index))

    def truncate(self, index: str, position: Position) -> int:
        """Delete every document up to a TRUNCATE's position. Return their number.

        Documents that change in the meantime are checked again. It is a task of the server, since
        no request lives long enough.
        """
        query = {"query": {"range": {POSITION_FIELD: {"lte": str(position)}}}}
        deleted = 0
        while True:
            self.refresh(index)
            task = self._ask(
                lambda: self._client.delete_by_query(
                    index=index,
                    body=query,
                    params={"conflicts": "proceed", "wait_for_completion": "false"},
                )
            )["task"]
            done = self._finished(task)
            deleted += int(done["deleted"])
            if done.get("failures"):
                raise SinkError(
                    f"can't apply a TRUNCATE: {done['failures'][0]}",
                    where=f"index {index}",
                )
            if not done["version_conflicts"]:
                return deleted

    def _finished(self, task: str) -> dict[str, Any]:
        pause_s = _TASK_POLL_S
        while True:
            answer = self._ask(lambda: self._client.tasks.get(task_id=task))
            if answer["completed"]:
                if "error" in answer:
                    raise SinkError(
                        f"can't apply a TRUNCATE: {answer['error'].get('reason')}",
                        where=f"index {self.alias}",
                    )
                response: dict[str, Any] = answer["response"]
                return response
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _TASK_POLL_S_MAX)

    def _delete(self, indexes: list[str]) -> None:
        for index in indexes:
            self._ask(lambda index=index: self._client.indices.delete(  # type: ignore[misc]
                index=index, params={"ignore_unavailable": "true"}
            ))  # fmt: skip

    def generations(self) -> list[str]:
        """Return our indexes of this table, behind any alias."""
        numbered = re.compile(re.escape(self.alias) + r"-\d+")
        names = indexes_of(self._client, f"{self.alias}-*", self._owner)
        return [name for name in names if numbered.fullmatch(name)]

    def _aliased(self) -> list[str]:
        """Return the indexes behind the alias."""

        def ask() -> list[str]:
            try:
                return list(self._client.indices.get_alias(name=self.alias))
            except NotFoundError:
                return []

        return self._ask(ask)

    def refuse_strangers(self) -> None:
        """Raise SinkError rather than take an alias or a name from an index that isn't ours."""
        ours = self.generations()
        strangers = [name for name in self._aliased() if name not in ours]
        exists = self._client.indices.exists
        if not strangers and not self._aliased() and self._ask(lambda: exists(index=self.alias)):
            strangers = [self.alias]
        if strangers:
            raise SinkError(
                f"the name {self.alias} belongs to an index of another program: {strangers[0]}",
                where=self.what,
                remedy="set another index.prefix in [search], or remove that index or alias",
            )

    def _ask(self, send: Callable[[], SearchResponse]) -> SearchResponse:
        return insist(send, f"index {self.alias}")
