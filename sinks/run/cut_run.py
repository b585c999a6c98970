"""Cuts of some tables → their targets, brought to the newest cut: one bounded run.

A *CutTarget* is made of tables at a cut: for example, an index of joined documents. ``CutRun``
brings it from its current cut to the newest one.

Each step is recorded before it starts, and then finished or repeated. Between two cuts a row may be
added and removed again, which the second cut alone doesn't show. A repeated write must change
nothing.

A target is written to a *generation*. It can't always continue: after a new definition, a type that
doesn't fit, or a new history. Then a new generation is loaded next to the serving one, slice by
slice, each slice as of the current cut. Between two slices both are brought to the newest cut.
After the last slice the new one serves.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from cdc.errors import BusyError, ConfigError, MillraceError, SinkUnreachableError
from cdc.lines import Lines, on_one_line
from sinks.run.cuts import Instant, Instants
from sinks.run.options import Report, wait_on

CutGeneration = TypeVar("CutGeneration", bound=BaseModel)
"""A target's output, as its record describes it."""


class CutLoad(BaseModel, Generic[CutGeneration]):
    """A generation that is being loaded, slice by slice. It has ``done`` of its ``slices``.

    ``rows`` is the approximate size of a slice (0: unknown).
    """

    model_config = ConfigDict(frozen=True)

    into: CutGeneration
    slices: int = 1
    done: int = 0
    rows: int = 0


class CutRecord(BaseModel, Generic[CutGeneration]):
    """The generation that ``serves``, and one that is ``loading`` to replace it.

    Both are ``at`` one cut, the latter in its finished slices. A run that brings them ``to`` a
    later one may have died: this step is repeated first. If the serving generation can't be brought
    there, it is ``frozen``.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    serves: CutGeneration | None = None
    frozen: bool = False
    loading: CutLoad[CutGeneration] | None = None
    at: Instant | None = None
    to: Instant | None = None
    ts_ms: int = 0
    """The time of the write. Two runs never write the same, so that each recognizes its own."""

    @property
    def newest(self) -> CutGeneration | None:
        """Return the generation that was begun last."""
        return self.loading.into if self.loading is not None else self.serves

    @property
    def written(self) -> list[CutGeneration]:
        """Return the generations that changes are written to."""
        serving = [self.serves] if self.serves is not None and not self.frozen else []
        return serving + ([self.loading.into] if self.loading is not None else [])


class CutTarget(ABC, Generic[CutGeneration]):
    """An output made of cuts, by a definition of the user's, which is at ``where``.

    ``what`` names a generation for people. ``record`` is the last written one.
    """

    name: str
    what: str
    where: str
    report: Report
    record: CutRecord[CutGeneration]

    @abstractmethod
    def write(self, record: CutRecord[CutGeneration]) -> None:
        """Write the ``record`` durably. Raise BusyError if another run has written one."""

    @abstractmethod
    def tables(self, generation: CutGeneration | None) -> set[str]:
        """Return the tables of a generation. None: those of the current definition."""

    @abstractmethod
    def is_there(self, generation: CutGeneration) -> bool:
        """Whether a generation exists, and no other one has replaced it under its name."""

    def is_shown(self, generation: CutGeneration) -> bool:
        """Whether it is already published. A run may have died between this and the record."""
        del generation
        return False

    @abstractmethod
    def suits(self, generation: CutGeneration, at: Instant) -> bool:
        """Whether a generation's definition still fits the tables at a cut."""

    @abstractmethod
    def unfit(self, generation: CutGeneration, at: Instant, newest: Instant) -> str | None:
        """Return why no differences lead a generation from one cut to another. None: they do."""

    @abstractmethod
    def adapted(self, generation: CutGeneration, newest: Instant) -> CutGeneration | str:
        """Return a generation with everything in the definition and the tables, or why none can."""

    @abstractmethod
    def begin(self, at: Instant, after: CutGeneration | None) -> CutLoad[CutGeneration]:
        """Create an empty generation, whose slices will have everything as of the cut."""

    @abstractmethod
    def load(self, loading: CutLoad[CutGeneration], at: Instant) -> None:
        """Write the next slice, as of a cut."""

    @abstractmethod
    def write_changed(self, generation: CutGeneration, at: Instant, to: Instant) -> None:
        """Bring a generation from one cut to another, completely or in its finished slices.

        It may be there already, or halfway.
        """

    @abstractmethod
    def publish(self, generation: CutGeneration) -> None:
        """Let a loaded generation serve, as far as the record alone doesn't do this."""

    def is_timed(self, generation: CutGeneration) -> bool:
        """Whether it changes at each cut even if no row of its tables does."""
        del generation
        return False

    def say(self, text: str) -> None:
        """Report a text to the user."""
        self.report(Lines(f"{on_one_line(self.name)}: {on_one_line(text)}"))


class CutRun(Generic[CutGeneration]):
    """One run of one target. Callers use only ``once``."""

    def __init__(
        self,
        cuts: Instants,
        target: CutTarget[CutGeneration],
        while_waiting: Callable[[], None] = wait_on,
    ) -> None:
        """Create the run. ``while_waiting`` raises once the command must end and its jobs stop."""
        self._cuts = cuts
        self._target = target
        self._while_waiting = while_waiting

    @property
    def _record(self) -> CutRecord[CutGeneration]:
        return self._target.record

    def once(self, *, rebuilt: bool = False) -> bool:
        """Bring the target to the newest cut, by a new generation if it must be ``rebuilt``.

        Return whether its tables, or the serving generation, have changed. Raise MillraceError if
        it can't be brought there. Then the serving generation stays unchanged.
        """
        before = self._record
        self._follow(rebuilt=rebuilt)
        loads = False
        while (loading := self._record.loading) is not None:
            loads = True
            self._load(loading)
            self._follow()
        was, now = before.at, self._record.at
        if was is None or now is None or loads:
            return True
        quiet = was.run == now.run or was.versions == now.versions
        return not quiet or before.serves != self._record.serves

    def _follow(self, *, rebuilt: bool = False) -> None:
        """Bring all generations to the newest cut, or begin a new one there."""
        loading = self._record.loading
        if loading is not None and self._target.is_shown(loading.into):
            self._write(serves=loading.into, loading=None, frozen=False)
        newest = self._newest()
        if self._must_begin(newest) or (rebuilt and self._record.loading is None):
            self._begin(newest)
        self._advance(newest)

    def _newest(self) -> Instant:
        """Return the newest cut of all tables, also of those of the serving generation."""
        tables = self._target.tables(None)
        serves = None if self._record.frozen else self._record.serves
        if serves is not None:
            both = self._cuts.newest(tables | self._target.tables(serves))
            if both is not None and not self._is_behind(both) and self._target.suits(serves, both):
                return both
        newest = self._cuts.newest(tables)
        if newest is None:
            raise ConfigError(
                f"no cut of the lakehouse has all of {', '.join(sorted(tables))}",
                where=self._target.where,
                remedy="run `millrace merge lakehouse`; `millrace status` shows which tables fail",
            )
        if self._is_behind(newest):
            raise ConfigError(
                f"not all of {', '.join(sorted(tables))} have the cut of the {self._target.what}",
                where=self._target.where,
                remedy=f"`millrace status` shows which tables fail; the {self._target.what} stays"
                " unchanged",
            )
        if serves is not None:
            self._write(frozen=True)
        return newest

    def _is_behind(self, newest: Instant) -> bool:
        """Whether a cut is older than the current one, in the same history."""
        at = self._record.at
        return at is not None and at.cut > newest.cut and self._cuts.has(at)

    def _must_begin(self, newest: Instant) -> bool:
        """Whether a generation must be loaded from the beginning, and no load has begun."""
        reason = self._unfit(newest)
        if reason is not None:
            self._write(frozen=True, to=None, loading=None)
        else:
            reason = self._outgrown(newest)
        if reason:
            self._target.say(f"{reason}: loading a new {self._target.what}")
        return reason is not None

    def _unfit(self, newest: Instant) -> str | None:
        """Return why no differences lead from the generations' cuts to the newest one.

        None: they do.
        """
        for at in (self._record.at, self._record.to):
            if at is not None and (reason := self._parted(at, newest)) is not None:
                return reason
        if (at := self._record.at) is not None and at.run != newest.run:
            for generation in self._record.written:
                if (reason := self._target.unfit(generation, at, newest)) is not None:
                    return reason
        return None

    def _parted(self, at: Instant, newest: Instant) -> str | None:
        if at.cut.epoch != newest.cut.epoch or at.cut > newest.cut:
            return "a new history begins"
        shared = newest.versions.keys() & at.versions.keys()
        if any(at.versions[name].id != newest.versions[name].id for name in shared):
            return "a lakehouse table was written again"
        is_same = at.run == newest.run or all(
            at.versions[name] == newest.versions[name] for name in shared
        )
        if not is_same and not self._cuts.has(at):
            return "the lakehouse no longer has its cut"
        return None

    def _outgrown(self, newest: Instant) -> str | None:
        """Return why the newest generation must be replaced.

        Empty: it never existed. None: it stays.
        """
        for generation in self._record.written:
            if not self._target.is_there(generation):
                return f"its {self._target.what} {generation} is missing"
        loading = self._record.loading
        wanted = self._record.newest
        if wanted is None or (self._record.frozen and loading is None):
            return ""
        adapted = self._target.adapted(wanted, newest)
        if isinstance(adapted, str):
            return adapted
        if loading is not None:
            loading = loading.model_copy(update={"into": adapted})
        if adapted != wanted:
            self._write(**({"serves": adapted} if loading is None else {"loading": loading}))
        return None

    def _begin(self, newest: Instant) -> None:
        """Create a new generation, and record that it is loaded as of this cut.

        The serving one is brought there first. If this fails, it stays unchanged from then on: the
        new generation can be the solution.
        """
        serves, after = self._record.serves, self._record.newest
        if serves is not None and not self._target.is_there(serves):
            serves = None
        self._write(serves=serves, loading=None)
        try:
            if self._record.written:
                self._advance(newest)
        except (BusyError, SinkUnreachableError):
            raise
        except MillraceError as error:
            self._while_waiting()
            what = self._target.what
            self._target.say(
                Lines(f"the current one stays until the new {what} is loaded: {error}")
            )
            self._write(frozen=True, to=None)
        self._write(loading=self._target.begin(newest, after), at=newest, to=None)

    def _advance(self, newest: Instant) -> None:
        """Write the changes since the current cut, after finishing an interrupted step."""
        if self._record.to is not None:
            self._apply(self._record.to)
        at = self._record.at
        if at is None or at.run == newest.run:
            if at != newest and at is not None:  # its source was compacted
                self._write(at=newest)
            return
        is_timed = any(map(self._target.is_timed, self._record.written))
        is_same = all(at.versions.get(name) == of for name, of in newest.versions.items())
        if is_same and not is_timed:
            self._write(at=newest)
            return
        self._write(to=newest)
        self._apply(newest)

    def _apply(self, to: Instant) -> None:
        at = self._record.at
        assert at is not None  # noqa: S101 (a step begins at a cut)
        for generation in self._record.written:
            self._target.write_changed(generation, at, to)
        self._write(at=to, to=None)

    def _load(self, loading: CutLoad[CutGeneration]) -> None:
        """Load the next slice, as of the current cut. After the last one, publish."""
        at = self._record.at
        assert at is not None  # noqa: S101 (a load begins at a cut)
        if loading.done < loading.slices:
            self._target.load(loading, at)
            loading = loading.model_copy(update={"done": loading.done + 1})
            self._write(loading=loading)
        if loading.done == loading.slices:
            self._target.publish(loading.into)
            self._write(serves=loading.into, loading=None, frozen=False)

    def _write(self, **changes: Any) -> None:
        self._target.write(self._record.model_copy(update=changes))
