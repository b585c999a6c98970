"""One requirement of one part → whether it is met, the findings, and the remedy."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from cdc.errors import MillraceError
from cdc.lines import on_one_line


class Level(StrEnum):
    """How a requirement is met. The worst comes first."""

    FAILURE = "failure"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


LEVELS: Final = tuple(Level)


class CheckResult(BaseModel):
    """A requirement of a part. ``exit_code`` is that of a start that it prevents."""

    model_config = ConfigDict(frozen=True)

    part: str
    requirement: str
    level: Level
    found: str
    needed: str = ""
    where: str = ""
    remedy: str = ""
    exit_code: int = 0


class Unanswered(NamedTuple):
    """Why it is unknown whether a requirement is met, and how to find out."""

    why: str
    remedy: str = ""


class Area:
    """Makes the findings of one part."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ok(self, requirement: str, found: str, needed: str = "") -> CheckResult:
        """Return a requirement that is met."""
        return self._finding(requirement, Level.OK, found, needed)

    def warning(self, requirement: str, found: str, remedy: str, where: str = "") -> CheckResult:
        """Return a problem that prevents no start, but may do harm later."""
        return self._finding(requirement, Level.WARNING, found, where=where, remedy=remedy)

    def unknown(self, requirement: str, why: str, remedy: str = "") -> CheckResult:
        """Return what is unknown, and why."""
        return self._finding(requirement, Level.UNKNOWN, why, remedy=remedy)

    def of_error(
        self, requirement: str, error: MillraceError, level: Level = Level.FAILURE, needed: str = ""
    ) -> CheckResult:
        """Return an error that a start raises."""
        return CheckResult(
            part=self.name,
            requirement=requirement,
            level=level,
            found=error.what,
            needed=on_one_line(needed),
            where=error.where,
            remedy=error.remedy,
            exit_code=error.exit_code,
        )

    def of_errors(
        self, requirement: str, errors: Iterable[MillraceError], found: str, needed: str = ""
    ) -> Iterator[CheckResult]:
        """Yield all errors of a requirement. If there are none, it is met, with ``found``."""
        is_met = True
        for error in errors:
            is_met = False
            yield self.of_error(requirement, error, needed=needed)
        if is_met:
            yield self.ok(requirement, found, needed)

    def tried(
        self, requirement: str, attempt: Callable[[], str | Unanswered], needed: str = ""
    ) -> CheckResult:
        """Try what a start does. The attempt returns its findings, or raises the obstacle."""
        try:
            finding = attempt()
        except MillraceError as error:
            return self.of_error(requirement, error, needed=needed)
        if isinstance(finding, Unanswered):
            return self.unknown(requirement, finding.why, finding.remedy)
        return self.ok(requirement, finding, needed)

    def _finding(
        self,
        requirement: str,
        level: Level,
        found: str,
        needed: str = "",
        where: str = "",
        remedy: str = "",
    ) -> CheckResult:
        return CheckResult(
            part=self.name,
            requirement=requirement,
            level=level,
            found=on_one_line(found),
            needed=on_one_line(needed),
            where=on_one_line(where),
            remedy=on_one_line(remedy),
        )


class LevelCounts(BaseModel):
    """The number of requirements at each level."""

    failure: int = 0
    warning: int = 0
    unknown: int = 0
    ok: int = 0


class CheckReport(BaseModel):
    """All findings, the worst first."""

    counts: LevelCounts
    findings: list[CheckResult]

    @classmethod
    def of(cls, findings: Iterable[CheckResult]) -> "CheckReport":
        """Sort and count. Within a level the parts keep their order."""
        ranked = sorted(findings, key=lambda finding: LEVELS.index(finding.level))
        counts = LevelCounts(
            **{level.value: sum(each.level is level for each in ranked) for level in LEVELS}
        )
        return cls(counts=counts, findings=ranked)
