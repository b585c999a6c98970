"""Named transforms and predicates → the chain that every record goes through, in their order.

Each is named by Debezium's or Kafka Connect's class, and has its options. A transform may have a
``predicate`` (and ``negate``): records that it doesn't hold for pass by the transform.
https://kafka.apache.org/documentation/#connect_transforms
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from cdc.records.connect import SourceRecord
from cdc.settings.options import Options
from cdc.transforms.outbox import EventRouter
from cdc.transforms.routing import PHYSICAL_TABLE, SOURCE, LogicalTopicRouter, RegexRouter
from cdc.transforms.unwrap import Unwrap

Transform = Callable[[SourceRecord], SourceRecord | None]
Predicate = Callable[[SourceRecord], bool]
Chain = Callable[[SourceRecord], list[SourceRecord]]
Named = tuple[str, str, Mapping[str, str]]
"""Name, class, options."""

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


class _Step(NamedTuple):
    """One transform, and which records it is for."""

    transform: Transform
    holds: Predicate | None
    negate: bool

    def __call__(self, record: SourceRecord) -> SourceRecord | None:
        if self.holds is not None and self.holds(record) is self.negate:
            return record
        return self.transform(record)


def chain(
    transforms: Iterable[Named], predicates: Iterable[Named] = (), *, lossless: bool = True
) -> Chain:
    """Make the chain of transforms in this order; raises ConfigError for what isn't known.

    ``lossless`` False takes Debezium's defaults where these lose something.
    """
    held = {name: _predicate(name, type_, options) for name, type_, options in predicates}
    steps = [_step(*named, held, lossless) for named in transforms]

    def apply(record: SourceRecord) -> list[SourceRecord]:
        for step in steps:
            left = step(record)
            if left is None:
                return []
            record = left
        return [record]

    return apply


def routes_events(transforms: Iterable[Named]) -> bool:
    """Whether what comes out are an outbox table's events, each of which counts by itself."""
    return any(type_ == f"{_DEBEZIUM}.outbox.EventRouter" for _, type_, _ in transforms)


def _step(
    name: str,
    type_: str,
    given: Mapping[str, str],
    predicates: Mapping[str, Predicate],
    lossless: bool,
) -> _Step:
    options = Options(f"transform {name}", given)
    make = _TRANSFORMS.get(type_)
    if make is None:
        raise options.wrong("type", f"is one of {', '.join(_TRANSFORMS)}")
    transform = make(options, lossless)
    predicate, negate = options.text("predicate"), options.flag("negate", False)
    if predicate and predicate not in predicates:
        raise options.wrong("predicate", "names one that predicates doesn't list")
    options.refuse_unread()
    return _Step(transform, predicates[predicate] if predicate else None, negate)


def _predicate(name: str, type_: str, given: Mapping[str, str]) -> Predicate:
    options = Options(f"predicate {name}", given)
    make = _PREDICATES.get(type_)
    if make is None:
        raise options.wrong("type", f"is one of {', '.join(_PREDICATES)}")
    predicate = make(options)
    options.refuse_unread()
    return predicate
