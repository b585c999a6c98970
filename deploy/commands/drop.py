"""``millrace drop``: configuration and what was named → the steps that take a capture away."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cdc.capture.start import why_foreign
from cdc.errors import ConfigError, LogAccessError, LogUnreachableError
from cdc.kafka.admin import LogAdmin
from cdc.kafka.topics import LogTopics
from cdc.log.state import last_progress, read_all
from cdc.postgres import slot
from cdc.postgres.captured import drop_publication, publication_exists
from cdc.postgres.connection import System, connect, connect_replication, identify
from cdc.postgres.failures import quote, server_address
from cdc.postgres.ownership import is_own
from cdc.records.made_topics import MadeTopic
from cdc.records.schema import TableName
from cdc.records.topics import (
    claim_topic,
    dead_letter_topic,
    made_topic,
    progress_topic,
    request_topic,
    schema_topic,
    signal_topic,
    table_topic,
)
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_line
from deploy.commands.sink_status import table_states

Step = tuple[str, Callable[[], object] | None]
"""Something to take away, and how; None: it is left, as Millrace hasn't made it."""


def drop(
    config: ConfigOption = DEFAULT_PATH,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only show.")] = False,
    topics: Annotated[bool, typer.Option("--topics", help="The topics, too.")] = False,
    lakehouse: Annotated[bool, typer.Option("--lakehouse", help="The Delta tables, too.")] = False,
    indexes: Annotated[bool, typer.Option("--indexes", help="The search indexes, too.")] = False,
) -> None:
    """Remove slot and publication, so that nothing holds WAL back any more.

    What Millrace hasn't made stays, and is named.
    """
    settings = load_to_connect(config)
    settings.require_own_capture("drop")
    steps = _source(settings)
    if lakehouse:
        steps += _lakehouse(settings)
    if indexes:
        steps += _indexes(settings)
    if topics:
        steps += _topics(settings)
    for what, act in steps:
        doing = "leaving" if act is None else "dropping" if yes else "would drop"
        print_line(f"{doing} {what}")
        if yes and act is not None:
            act()
    if all(act is None for _, act in steps):
        print("nothing to drop")
    elif not yes:
        print("nothing was changed; --yes drops it")


def _source(settings: Settings) -> list[Step]:
    capture = settings.capture
    name = capture.publication_name
    with connect(settings.source, purpose="drop") as connection:
        steps: list[Step] = []
        state = slot.inspect(connection, capture.slot_name)
        if state is not None:
            steps.append(_slot(settings, state))
        if is_own(connection, capture):
            steps.append((f"publication {name}", partial(_drop_publication, settings)))
        elif publication_exists(connection, name):
            what = f"publication {name}: Millrace didn't make it. Its owner's to drop: DROP"
            steps.append((f"{what} PUBLICATION {quote(name)};", None))
    return steps


def _slot(settings: Settings, state: slot.SlotState) -> Step:
    """The slot's step; only the log tells whether Millrace made it."""
    name, by_hand = state.name, slot.drop_statement(state.name)
    topic = progress_topic(settings.capture.topic_prefix)
    try:
        progress = last_progress(settings.kafka, topic, name)
    except (LogUnreachableError, LogAccessError) as error:
        again = error.remedy or "try again when the brokers answer"
        raise type(error)(
            f"only the log tells whether Millrace made slot {name}: {error.what}",
            where=error.where,
            remedy=f"{again}; or, if no other program uses the slot, drop it at the source: "
            f"{by_hand}",
        ) from error
    if reason := why_foreign(progress, state, _system(settings)):
        what = f"slot {name}: {reason}. If no other program uses it: {by_hand}"
        return what, None
    in_use = ", in use: stop the daemon first" if state.active else ""
    what = f"slot {name} ({state.retained_bytes:,} bytes of WAL held back{in_use})"
    return what, partial(_drop_slot, settings)


def _system(settings: Settings) -> System:
    replication = connect_replication(settings.source)
    try:
        return identify(replication)
    finally:
        replication.finish()


def _drop_slot(settings: Settings) -> None:
    name = settings.capture.slot_name
    with connect(settings.source, purpose="drop") as connection:
        # In a snapshot nobody reads the slot, but its daemon has the lock.
        if not slot.lock(connection, name):
            raise slot.in_use(name, None, server_address(connection.pgconn))
        slot.drop(connection, name)


def _drop_publication(settings: Settings) -> None:
    with connect(settings.source, purpose="drop") as connection:
        drop_publication(connection, settings.capture.publication_name)


def _topics(settings: Settings) -> list[Step]:
    prefix = settings.capture.topic_prefix
    existing = LogAdmin(settings.kafka).partitions()
    # Those of the state go last: without them nobody knows which topics there are.
    state = [named(prefix) for named in (progress_topic, schema_topic, table_topic, made_topic)]
    made = {topic.topic for topic in read_all(settings.kafka, made_topic(prefix), MadeTopic)}
    made.add(made_topic(prefix))  # nobody else has a use for it
    data = [table.topic for table in table_states(settings) if table.is_in_log]
    others = signal_topic, request_topic, dead_letter_topic, claim_topic
    beside = [named(prefix) for named in others]
    names = dict.fromkeys([*data, *beside, *sorted(made)])
    delete = LogTopics(settings).delete
    return [
        (f"topic {name}", partial(delete, [name]))
        if name in made
        else (f"topic {name}: it was there before Millrace", None)
        for name in [*(name for name in names if name not in state), *state]
        if name in existing
    ]


def _lakehouse(settings: Settings) -> list[Step]:
    lakehouse = settings.require_lakehouse()
    from sinks.changes.derived import local_path, table_path
    from sinks.run.plans import lakehouse_plans
    from sinks.spark.session import open_session

    folder = local_path(lakehouse.path)
    if folder is None:
        raise ConfigError(
            "only a lakehouse on this machine's file system can be dropped from here",
            where=lakehouse.path,
            remedy="remove that location with its own tools",
        )
    own = folder / "_millrace"
    last = lakehouse_plans(lakehouse.path, partial(open_session, settings.spark)).last()
    if last is None:
        return []
    # Only what Millrace made: the location may hold other tables, too.
    names = [TableName.parse(name) for name in last.all_tables]
    tables = [Path(table_path(str(folder), name)) for name in names]
    return [
        (f"lakehouse folder {path}", partial(shutil.rmtree, path))
        for path in [*tables, own]
        if path.exists()
    ]


def _indexes(settings: Settings) -> list[Step]:
    search = settings.require_search()
    from sinks.search.client import check
    from sinks.search.client import connect as connect_search
    from sinks.search.dead_letters import DocumentDeadLetters
    from sinks.search.indexes import alias_of, indexes_of
    from sinks.search.progress import Ledger

    client = connect_search(search)
    check(client, search)
    prefix, index_prefix = settings.capture.topic_prefix, search.index_prefix
    indexes = indexes_of(client, f"{index_prefix}*", {"log": prefix})
    steps: list[Step] = [
        (f"index {name}", partial(client.indices.delete, index=name)) for name in indexes
    ]
    ledger = Ledger(client, index_prefix, prefix)
    if ledger.is_begun():
        steps.append((f"the progress of {prefix} in index {ledger.index}", ledger.forget))
    for alias in sorted({alias_of(index) for index in indexes}):
        refusals = DocumentDeadLetters(client, index_prefix, alias)
        if refusals.by_document():
            steps.append((f"dead letters about index {alias}", refusals.forget))
    return steps
