"""A folder of a case → what to run, and Millrace's settings for Debezium Server's properties."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
CASES: Final = HERE / "cases"
BASE: Final = HERE / "base.properties"
PROPERTIES: Final = "debezium.properties"
EXPECTED: Final = "expected.jsonl"
STOPPED_DEBEZIUM: Final = re.compile(r"_fails\Z|\Atimetz_seconds_offset\Z")
"""Names of cases in which Debezium stopped; Millrace goes on."""
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_MEANINGS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_ELSEWHERE: Final = re.compile(
    r"debezium\.(sink\.|source\.(connector\.class|tasks\.max|offset\.|database\.|errors\."
    r"|poll\.interval\.ms|max\.queue\.|retriable\.|notification\.|custom\.metric\.tags"
    r"|snapshot\.(fetch\.size|locking\.mode|lock\.timeout\.ms|isolation\.mode|max\.threads)"
    r"|slot\.drop\.on\.stop|xmin\.fetch\.interval\.ms|schema\.refresh\.mode))|quarkus\."
)
"""Debezium's own plumbing: [source] and [kafka] are the runner's, offsets are in the log."""

Sections = dict[str, dict[str, str | int]]


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded case."""

    folder: Path
    sections: Sections
    meta: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Case":
        """Read a case's properties, after those that all cases share."""
        properties = {**parse(BASE), **parse(folder / PROPERTIES)}
        if "debezium.source.topic.prefix" not in properties:
            raise ValueError(f"{PROPERTIES}: debezium.source.topic.prefix is missing")
        meta = folder / "case.json"
        return cls(
            folder,
            sections(properties),
            json.loads(meta.read_text(encoding="utf-8")) if meta.exists() else {},
        )

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def prefix(self) -> str:
        """The prefix of the case's topics, as recorded."""
        return str(self.sections["capture"]["topic.prefix"])

    @property
    def debezium_stopped(self) -> bool:
        """Whether what was recorded ends where Debezium gave up."""
        return STOPPED_DEBEZIUM.search(self.name) is not None

    @property
    def topics(self) -> re.Pattern[str]:
        """Which topics belong to the case."""
        own = (rf"{re.escape(self.prefix)}\..*", self.heartbeats.pattern)
        return re.compile("|".join((*own, *self.meta.get("topics", ()))))

    @property
    def heartbeats(self) -> re.Pattern[str]:
        """The topic of the case's heartbeats."""
        start = self.sections["capture"].get("topic.heartbeat.prefix", "__debezium-heartbeat")
        return re.compile(re.escape(self.meta.get("hb_topic", f"{start}.{self.prefix}")))

    @property
    def recorded_heartbeats(self) -> int:
        """How many heartbeats are compared, which come by the clock and not by changes."""
        return int(self.meta.get("heartbeats_max", 0))


def find(folder: Path, names: str = "") -> list[Path]:
    """The folders of cases in a folder, by name; with ``names`` (spaces or commas) those only.

    One that lacks a file is a case, too: left out, nobody would know that it was never run.
    """
    found = _cases(folder) or _cases(folder / "cases")
    if not found:
        raise SystemExit(f"no case in {folder}: a case is a folder with {PROPERTIES}")
    wanted = set(re.split(r"[ ,]+", names.strip())) if names.strip() else None
    if wanted is not None and (missing := wanted - {path.name for path in found}):
        raise SystemExit(f"no such case in {folder}: {', '.join(sorted(missing))}")
    return [path for path in found if wanted is None or path.name in wanted]


def _cases(folder: Path) -> list[Path]:
    files = (PROPERTIES, EXPECTED)
    return sorted({path.parent for name in files for path in folder.glob(f"*/{name}")})


def parse(path: Path) -> dict[str, str]:
    """Java's properties: ``key=value`` lines, escaped by backslashes."""
    return dict(_lines(path.read_text(encoding="utf-8")))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.strip() and line.lstrip()[0] not in "#!":
            key, _, value = line.partition("=")
            yield _unescaped(key.strip()), _unescaped(value.lstrip())


def _unescaped(text: str) -> str:
    def meaning(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _MEANINGS.get(escape, escape)

    return _ESCAPE.sub(meaning, text)


def sections(properties: Mapping[str, str]) -> Sections:
    """Debezium Server's properties → sections of millrace.toml, name by name."""
    made: Sections = {"capture": {}, "format": {}, "transforms": {}, "predicates": {}}
    for key, value in properties.items():
        if _ELSEWHERE.match(key):
            continue
        if key in {"debezium.transforms", "debezium.predicates"}:
            made[key.removeprefix("debezium.")]["order"] = value
            continue
        _, section, name = (*key.split(".", 2), "", "")[:3]
        if section != "source" and section not in made:
            raise ValueError(f"no such property: {key}")
        made["capture" if section == "source" else section][name] = value
    del made["capture"]["slot.name"]  # base.properties leaves it to the runner
    return made
