"""Topics and operations on them → the commands that allow these."""

from collections.abc import Iterable
from typing import Final

from cdc.errors import LogAccessError
from cdc.lines import Lines
from cdc.records.topics import OWN_TOPICS

TOPIC_OPERATIONS: Final = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"})
"""What Millrace does with a topic of its own, once it is there."""


def grants(servers: str, prefix: str, names: Iterable[str], operations: Iterable[str]) -> Lines:
    """The commands for operations on topics: ours by prefixes, each other one by name."""
    own = (f"{OWN_TOPICS}{prefix}.", f"{prefix}.")
    patterns: dict[str, None] = {}
    for name in sorted(names):
        start = next((each for each in own if name.startswith(each)), "")
        pattern = f"prefixed --topic {start}" if start else f"literal --topic {name}"
        patterns[pattern] = None
    needed = " ".join(f"--operation {_acl(each)}" for each in sorted(operations))
    command = f"kafka-acls --bootstrap-server {servers} --add --allow-principal User:… {needed}"
    commands = (f"{command} --resource-pattern-type {pattern}" for pattern in patterns)
    return Lines("run" + "".join(f"\n      {each}" for each in commands))


def hidden_topic(name: str, servers: str, prefix: str) -> LogAccessError:
    """Say that a topic is there, and that the user isn't told of it."""
    return LogAccessError(
        f"topic {name} exists, but the user lacks the right to see it",
        where=servers,
        remedy=grants(servers, prefix, [name], TOPIC_OPERATIONS),
    )


def _acl(operation: str) -> str:
    """As kafka-acls names it."""
    return "".join(word.capitalize() for word in operation.split("_"))
