"""Topics and operations on them → the commands that grant them."""

from collections.abc import Iterable
from typing import Final

from cdc.errors import LogAccessError
from cdc.lines import Lines
from cdc.records.topics import OWN_TOPICS

TOPIC_OPERATIONS: Final = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"})
"""Millrace's operations on its own existing topics."""


def grants(servers: str, prefix: str, names: Iterable[str], operations: Iterable[str]) -> Lines:
    """Return the commands for operations on topics: ours by prefix, any other by name."""
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
    """Return the error for a topic that exists but is hidden from the user."""
    return LogAccessError(
        f"topic {name} exists, but the user lacks the right to see it",
        where=servers,
        remedy=grants(servers, prefix, [name], TOPIC_OPERATIONS),
    )


def _acl(operation: str) -> str:
    """Return the operation's name in kafka-acls."""
    return "".join(word.capitalize() for word in operation.split("_"))
