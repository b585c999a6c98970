"""Topics and operations on them → the commands that allow these."""

from collections.abc import Iterable

from cdc.lines import Lines
from cdc.records.topics import OWN_TOPICS


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


def _acl(operation: str) -> str:
    """As kafka-acls names it."""
    return "".join(word.capitalize() for word in operation.split("_"))
