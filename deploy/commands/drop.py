"""``millrace drop``: configuration and options → a list, and its items removed.

The list comes from the servers, so a second run finds the rest of the first one. The slot is its
first item. The record of Millrace's own topics is its last.
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import psycopg
import typer

from cdc.capture.start import why_foreign
from cdc.errors import (
    ConfigError,
    DiskError,
    LogAccessError,
    LogUnreachableError,
    MillraceError,
    SinkError,
    SlotInUseError,
)
from cdc.kafka.admin import LogAdmin
from cdc.kafka.topics import LogTopics
from cdc.log.state import last_progress, read_all
from cdc.postgres import slot
from cdc.postgres.captured import drop_publication, may_drop_publication, publication_exists
from cdc.postgres.connection import System, connect, connect_replication, identify, query
from cdc.postgres.failures import server_address
from cdc.postgres.ownership import is_own
from cdc.records.made_topics import MadeTopic
from cdc.records.schema import TableName
from cdc.records.sql_names import quote
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
from cdc.settings.exposure import registry_urls
from deploy.commands.app import ConfigOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.ddl_trigger import FUNCTION
from deploy.commands.printing import print_line
from deploy.status.sinks import table_states

_TRIGGER_FUNCTIONS: Final = """
SELECT p.oid::regprocedure::text, coalesce(string_agg(e.evtname::text, ', ' ORDER BY e.evtname), '')
  FROM pg_proc p LEFT JOIN pg_event_trigger e ON e.evtfoid = p.oid
 WHERE p.proname = %s AND p.prorettype = 'event_trigger'::regtype GROUP BY p.oid
"""


class Item(NamedTuple):
    """A part of a capture, and how to remove it; or, without that, ``why`` it stays.

    A ``last`` item is needed to find other items, and stays until these are removed.
    """

    what: str
    act: Callable[[], object] | None = None
    why: str = ""
    last: bool = False


def drop(
    config: ConfigOption = DEFAULT_PATH,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    topics: Annotated[bool, typer.Option("--topics", help="Also remove the topics.")] = False,
    lakehouse: Annotated[
        bool, typer.Option("--lakehouse", help="Also remove the Delta tables and views.")
    ] = False,
    indexes: Annotated[bool, typer.Option("--indexes", help="Also remove the indexes.")] = False,
) -> None:
    """Remove the slot and the publication, so that nothing holds WAL back.

    The command shows what it removes and what it leaves, and asks. It leaves what Millrace didn't
    create. You can run it again.
    """
    settings = load_to_connect(config)
    settings.require_own_capture("drop")
    listed, errors = _listed(settings, topics=topics, lakehouse=lakehouse, indexes=indexes)
    going = [item for item in listed if item.act is not None]
    for item in going:
        print_line(f"to remove: {item.what}")
    for item in listed:
        if item.act is None:
            print_line(f"to leave: {item.what}: {item.why}")
    if not going:
        print("nothing was changed" if errors else "there is nothing to remove")
    elif yes or _is_confirmed():
        with _without_daemon(settings):
            errors += _remove(listed, errors)
    else:
        print("nothing was changed" + ("" if sys.stdin.isatty() else ": add --yes to remove it"))
    if errors:
        raise errors[0]


def _listed(
    settings: Settings, *, topics: bool, lakehouse: bool, indexes: bool
) -> tuple[list[Item], list[MillraceError]]:
    """Return all items, in the order of removal, and the errors of parts that can't be read."""
    prefix, listed, errors = settings.capture.topic_prefix, list[Item](), list[MillraceError]()
    parts: list[tuple[str, bool, str, Callable[[Settings], list[Item]]]] = [
        (f"the source at {settings.source.get('host', 'localhost')}", True, "", _source)
    ]
    if lakehouse or settings.lakehouse is not None:
        where = settings.require_lakehouse().path
        parts.append((f"the lakehouse at {where}", lakehouse, "--lakehouse", _lakehouse))
    if indexes or settings.search is not None:
        indexed = f"the indexes {settings.require_search().index_prefix}*"
        parts.append((indexed, indexes, "--indexes", _indexes))
    parts.append((f"the topics of topic.prefix {prefix}", topics, "--topics", _topics))
    for what, is_asked_for, option, look in parts:
        if not is_asked_for:
            listed.append(Item(what, why=f"{option} removes those that Millrace has created"))
            continue
        try:
            listed += look(settings)
        except MillraceError as error:
            errors.append(error)
            listed.append(Item(what, why=f"not checked: {error.what}"))
    if registry_urls(settings.format):
        listed.append(Item("schemas at the registry", why="the remaining records need them"))
    return listed, errors


def _is_confirmed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Remove all of this?")


@contextmanager
def _without_daemon(settings: Settings) -> Iterator[None]:
    """Exclude daemons during the removal. Raise SlotInUseError if one runs.

    An unreachable source may still have one, so its error is passed on.
    """
    name = settings.capture.slot_name
    try:
        connection = connect(settings.source, purpose="drop")
    except MillraceError:
        print("nothing was removed: the source doesn't answer, so a daemon may still run")
        raise
    with connection:
        if not slot.lock(connection, name):
            raise SlotInUseError(
                f"nothing was removed: a daemon uses slot {name}",
                where=server_address(connection.pgconn),
                remedy="stop it (millrace run), and run this command again",
            )
        yield


def _remove(listed: Sequence[Item], before: Sequence[MillraceError]) -> list[MillraceError]:
    """Remove each item, even if others fail. Return the errors.

    If the slot, the first one, is in use, everything stays, as its reader needs the rest.
    """
    errors, left = list[MillraceError](), list[str]()
    for item in listed:
        if item.act is None or any(isinstance(error, SlotInUseError) for error in errors):
            left.append(item.what)
        elif item.last and (errors or before):
            left.append(f"{item.what}: the next drop needs it to find what is left")
        elif (error := _removed(item.act)) is None:
            print_line(f"removed {item.what}")
        else:
            errors.append(error)
            left.append(f"{item.what}: {error.what}")
    for what in left:
        print_line(f"left: {what}")
    if not left:
        print("nothing is left")
    return errors


def _removed(act: Callable[[], object]) -> MillraceError | None:
    """Remove an item. Return the error, if there is one."""
    try:
        act()
    except MillraceError as error:
        return error
    except OSError as error:
        what = "can't remove a folder"
        return DiskError.of(error, what) or SinkError(f"{what}: {error}")
    return None


def _source(settings: Settings) -> list[Item]:
    with connect(settings.source, purpose="drop") as connection:
        state = slot.inspect(connection, settings.capture.slot_name)
        items = [_slot(settings, state)] if state is not None else []
        items += _publication(settings, connection)
        for function, triggers in query(connection, _TRIGGER_FUNCTIONS, [FUNCTION]):
            why = f"a superuser installed it. Remove it with: DROP FUNCTION {function} CASCADE;"
            items.append(Item(f"function {function}, event triggers {triggers or 'none'}", why=why))
        if (signals := settings.capture.signal_data_collection) is not None:
            items.append(Item(f"signal table {signals}", why="you created it"))
        user = connection.info.user
    items.append(Item(f"role {user} and its rights", why="you created them"))
    return items


def _publication(settings: Settings, connection: psycopg.Connection) -> list[Item]:
    name = settings.capture.publication_name
    if not publication_exists(connection, name):
        return []
    what, by_hand = f"publication {name}", f"Its owner can drop it: DROP PUBLICATION {quote(name)};"
    if not is_own(connection, settings.capture):
        return [Item(what, why=f"Millrace didn't create it. {by_hand}")]
    if not may_drop_publication(connection, name):
        return [Item(what, why=f"role {connection.info.user} no longer owns it. {by_hand}")]
    return [Item(what, partial(_drop_publication, settings))]


def _slot(settings: Settings, state: slot.SlotState) -> Item:
    """Return the slot's item. Only the log shows whether Millrace created it."""
    name, by_hand = state.name, slot.drop_statement(state.name)
    topic = progress_topic(settings.capture.topic_prefix)
    try:
        progress = last_progress(settings.kafka, topic, name)
    except (LogUnreachableError, LogAccessError) as error:
        again = error.remedy or "run this again when the brokers answer"
        raise type(error)(
            f"only the log shows whether Millrace created slot {name}, and it can't be read:"
            f" {error.what}",
            where=error.where,
            remedy=f"{again}; or, if no other program uses the slot, drop it at the source:"
            f" {by_hand}",
        ) from error
    if reason := why_foreign(progress, state, _system(settings)):
        return Item(f"slot {name}", why=f"{reason}. If no other program uses it: {by_hand}")
    in_use = ", in use: stop the daemon first" if state.active else ""
    what = f"slot {name} ({state.retained_bytes:,} bytes of WAL held back{in_use})"
    return Item(what, partial(_drop_slot, settings))


def _system(settings: Settings) -> System:
    replication = connect_replication(settings.source)
    try:
        return identify(replication)
    finally:
        replication.finish()


def _drop_slot(settings: Settings) -> None:
    with connect(settings.source, purpose="drop") as connection:
        slot.drop(connection, settings.capture.slot_name)


def _drop_publication(settings: Settings) -> None:
    with connect(settings.source, purpose="drop") as connection:
        drop_publication(connection, settings.capture.publication_name)


def _topics(settings: Settings) -> list[Item]:
    prefix = settings.capture.topic_prefix
    existing = LogAdmin(settings.kafka).partitions()
    # Those of the state come last: without them the topics are unknown.
    state = [named(prefix) for named in (progress_topic, schema_topic, table_topic, made_topic)]
    made = {topic.topic for topic in read_all(settings.kafka, made_topic(prefix), MadeTopic)}
    made.add(made_topic(prefix))  # no other program uses it
    data = [table.topic for table in table_states(settings) if table.is_in_log]
    others = signal_topic, request_topic, dead_letter_topic, claim_topic
    beside = [named(prefix) for named in others]
    names = dict.fromkeys([*data, *beside, *sorted(made)])
    delete = LogTopics(settings).delete
    return [
        Item(f"topic {name}", partial(delete, [name]), last=name in state)
        if name in made
        else Item(f"topic {name}", why="it is older than Millrace's log")
        for name in [*(name for name in names if name not in state), *state]
        if name in existing
    ]


def _lakehouse(settings: Settings) -> list[Item]:
    lakehouse = settings.require_lakehouse()
    from sinks.changes.derived import derived_tables, local_path, table_path
    from sinks.changes.names import quoted_path
    from sinks.run.plans import lakehouse_plans
    from sinks.spark.session import open_session
    from sinks.views.records import made_folders, view_records

    folder = local_path(lakehouse.path)
    if folder is None:
        raise ConfigError(
            "this command can drop a lakehouse on a local file system only",
            where=lakehouse.path,
            remedy="remove that location with its storage's own tools",
        )
    session = partial(open_session, settings.spark)
    last = lakehouse_plans(lakehouse.path, session).last()
    # Only what Millrace created, as the location may hold other tables, too.
    planned = last.all_tables if last is not None else {}
    tables = [Path(table_path(str(folder), TableName.parse(name))) for name in planned]
    plans = folder / "_millrace"  # it lists the existing tables and views
    derived = derived_tables(lakehouse, {table.source for table in planned.values()})
    names = [of.catalog for name, of in derived.items() if name in planned and of.catalog]
    views = made_folders(
        lakehouse, settings.capture.topic_prefix, view_records(str(folder), session)
    )
    made = [path for path, is_own in views.items() if is_own]
    return [
        *(
            Item(
                f"lakehouse folder {path}",
                partial(_remove_folder, path, folder),
                last=path == plans,
            )
            for path in [*tables, *made, plans]
            if path.exists() or path.is_symlink()
        ),
        *(
            Item(f"lakehouse folder {path}", why="no run of views created the Delta table in it")
            for path, is_own in views.items()
            if not is_own
        ),
        *(
            Item(f"{name} in Spark's catalog", why=f"DROP TABLE {quoted_path(name)};")
            for name in names
        ),
    ]


def _remove_folder(path: Path, lakehouse: Path) -> None:
    """Remove a folder of the lakehouse, and its schema's if it was the last one there."""
    from sinks.run.owner import one_at_a_time

    with one_at_a_time(str(lakehouse)):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:  # another process is removing all of it, or a part
            if path.exists():
                raise
        if path.parent != lakehouse and path.parent.exists() and not any(path.parent.iterdir()):
            path.parent.rmdir()


def _indexes(settings: Settings) -> list[Item]:
    search = settings.require_search()
    from sinks.search.client import check, count, delete_index
    from sinks.search.client import connect as connect_search
    from sinks.search.dead_letters import DocumentDeadLetters
    from sinks.search.indexes import alias_of, indexes_of
    from sinks.search.progress import Ledger

    client = connect_search(search)
    check(client, search)
    prefix, index_prefix = settings.capture.topic_prefix, search.index_prefix
    indexes = indexes_of(client, f"{index_prefix}*", {"log": prefix})
    items: list[Item] = []
    # While the indexes exist, they identify this log's dead letters.
    refused = 0
    for alias in sorted({alias_of(index) for index in indexes}):
        letters = DocumentDeadLetters(client, index_prefix, alias)
        if about := len(letters.by_document()):
            refused += about
            items.append(Item(f"dead letters about index {alias}", letters.forget))
    items += [Item(f"index {name}", partial(delete_index, client, name)) for name in indexes]
    ledger = Ledger(client, index_prefix, prefix)
    letters = DocumentDeadLetters(client, index_prefix, None)
    records, others = count(client, ledger.index), "another topic.prefix has documents in it"

    def remove_progress() -> None:
        ledger.forget()
        delete_index(client, ledger.index)

    if records is not None and records <= ledger.record_count():
        items.append(Item(f"index {ledger.index}", remove_progress))
    elif records is not None:
        if ledger.is_begun():
            items.append(Item(f"the progress of {prefix} in index {ledger.index}", ledger.forget))
        items.append(Item(f"index {ledger.index}", why=others))
    if (documents := count(client, letters.index)) is not None and documents <= refused:
        items.append(Item(f"index {letters.index}", partial(delete_index, client, letters.index)))
    elif documents is not None:
        items.append(Item(f"index {letters.index}", why=others))
    return items
