"""Named transforms and predicates → the chain that every record goes through, in order.

Each has the name of its class in Debezium or Kafka Connect, and its options. A transform may have a
``predicate`` (and ``negate``): a record for which it is false skips the transform.
https://kafka.apache.org/documentation/#connect_transforms
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from cdc.records.connect import SourceRecord
from cdc.settings.model import ConnectPlugin
from cdc.settings.options import Options
from cdc.transforms.outbox import EventRouter
from cdc.transforms.routing import PHYSICAL_TABLE, SOURCE, LogicalTopicRouter, RegexRouter
from cdc.transforms.unwrap import Unwrap

T = TypeVar("T")

Transform = Callable[[SourceRecord], SourceRecord | None]
Predicate = Callable[[SourceRecord], bool]
Chain = Callable[[SourceRecord], list[SourceRecord]]

_CONNECT: Final = "org.apache.kafka.connect.transforms"
_DEBEZIUM: Final = "io.debezium.transforms"


def _topic_name_matches(options: Options) -> Predicate:
    pattern = options.pattern("pattern")
    return lambda record: pattern.fullmatch(record.topic) is not None


def _has_header_key(options: Options) -> Predicate:
    name = options.required("name")
    return lambda record: any(header.name == name for header in record.headers)


_TRANSFORMS: Final[Mapping[str, Callable[[Options, bool], Transform]]] = {
    f"{_DEBEZIUM}.ExtractNewRecordState": lambda options, lossless: Unwrap(
        options, lossless=lossless
    ),
    f"{_DEBEZIUM}.outbox.EventRouter": lambda options, lossless: EventRouter(
        options, lossless=lossless
    ),
    f"{_DEBEZIUM}.ByLogicalTableRouter": lambda options, _lossless: LogicalTopicRouter(
        options, PHYSICAL_TABLE
    ),
    f"{_DEBEZIUM}.ToLogicalTopicRouter": lambda options, _lossless: LogicalTopicRouter(
        options, SOURCE
    ),
    f"{_CONNECT}.RegexRouter": lambda options, _lossless: RegexRouter(options),
}
_PREDICATES: Final[Mapping[str, Callable[[Options], Predicate]]] = {
    f"{_CONNECT}.predicates.TopicNameMatches": _topic_name_matches,
    f"{_CONNECT}.predicates.HasHeaderKey": _has_header_key,
    f"{_CONNECT}.predicates.RecordIsTombstone": lambda _options: (
        lambda record: record.value is None
    ),
}


class _ConditionalTransform(NamedTuple):
    """One transform, and the records that it applies to."""

    transform: Transform
    predicate: Predicate | None
    negate: bool

    def __call__(self, record: SourceRecord) -> SourceRecord | None:
        if self.predicate is not None and self.predicate(record) is self.negate:
            return record
        return self.transform(record)


def chain(
    transforms: Iterable[ConnectPlugin],
    predicates: Iterable[ConnectPlugin] = (),
    *,
    lossless: bool = True,
) -> Chain:
    """Build the chain of transforms in this order. Raise ConfigError for unknown names.

    ``lossless`` False uses Debezium's defaults even if they lose information.
    """
    by_name = {plugin.name: _predicate(plugin) for plugin in predicates}
    steps = [_conditional(plugin, by_name, lossless) for plugin in transforms]

    def apply(record: SourceRecord) -> list[SourceRecord]:
        for step in steps:
            left = step(record)
            if left is None:
                return []
            record = left
        return [record]

    return apply


def routes_events(transforms: Iterable[ConnectPlugin]) -> bool:
    """Whether the output is an outbox table's events, which all count separately."""
    return any(plugin.type == f"{_DEBEZIUM}.outbox.EventRouter" for plugin in transforms)


def _conditional(
    plugin: ConnectPlugin, predicates: Mapping[str, Predicate], lossless: bool
) -> _ConditionalTransform:
    options = Options(f"transform {plugin.name}", plugin.options)
    transform = _of_type(plugin, options, _TRANSFORMS)(options, lossless)
    predicate, negate = options.text("predicate"), options.flag("negate", False)
    if predicate and predicate not in predicates:
        raise options.wrong("predicate", "names one that predicates doesn't list")
    options.refuse_unread()
    return _ConditionalTransform(transform, predicates.get(predicate), negate)


def _predicate(plugin: ConnectPlugin) -> Predicate:
    options = Options(f"predicate {plugin.name}", plugin.options)
    predicate = _of_type(plugin, options, _PREDICATES)(options)
    options.refuse_unread()
    return predicate


def _of_type(plugin: ConnectPlugin, options: Options, types: Mapping[str, T]) -> T:
    if plugin.type not in types:
        raise options.wrong("type", f"must be one of {', '.join(types)}")
    return types[plugin.type]
