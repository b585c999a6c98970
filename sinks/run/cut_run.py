"""Cuts of some tables → what is made of them, brought to the newest cut: one bounded run.

A *CutTarget* is one thing that is made of tables at a cut: an index of joined documents, for
example. ``CutRun`` brings it from the cut that it stands at to the newest one.

What is started is recorded first, and finished or repeated: between two cuts a row may have come
and gone again, which the second one alone wouldn't tell. To write something once more must change
nothing.

A target is written to a *generation*, which can't always go on (another definition, a type that
doesn't fit, a new history). Then another one is loaded beside the one that serves, slice by slice,
each slice as of the cut reached by then. Between two slices both are brought to the newest cut;
with the last slice the new one serves.
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
"""What a target is written to, as its record has it."""


class CutLoad(BaseModel, Generic[CutGeneration]):
    """A generation that is being loaded, slice by slice; ``done`` of its ``slices`` are in it.

    ``rows`` is about how many a slice has (0: unknown).
    """

    model_config = ConfigDict(frozen=True)

    into: CutGeneration
    slices: int = 1
    done: int = 0
    rows: int = 0


class CutRecord(BaseModel, Generic[CutGeneration]):
    """The generation that ``serves``, and one that is ``loading`` to take its place.

    Both are as of the cut that they are ``at``; the latter in those slices that are done. A run
    that brings them ``to`` a later one may have died in the middle: that is done again first. Where
    the one that serves can't be brought there, it is ``frozen``.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    serves: CutGeneration | None = None
    frozen: bool = False
    loading: CutLoad[CutGeneration] | None = None
    at: Instant | None = None
    to: Instant | None = None
    ts_ms: int = 0
    """When it was written: two runs never write the same, so that each knows its own."""

    @property
    def newest(self) -> CutGeneration | None:
        """The generation that was begun last."""
        return self.loading.into if self.loading is not None else self.serves

    @property
    def written(self) -> list[CutGeneration]:
        """The generations that changes are written to."""
        serving = [self.serves] if self.serves is not None and not self.frozen else []
        return serving + ([self.loading.into] if self.loading is not None else [])


class CutTarget(ABC, Generic[CutGeneration]):
    """One thing that is made of cuts, by a definition of the user's; ``where`` that stands.

    ``what`` a generation is, for people. The ``record`` is the one that was written last.
    """

    name: str
    what: str
    where: str
    report: Report
    record: CutRecord[CutGeneration]

    @abstractmethod
    def write(self, record: CutRecord[CutGeneration]) -> None:
        """Make it the ``record``, durably; raises BusyError if another run has written one."""

    @abstractmethod
    def tables(self, generation: CutGeneration | None) -> set[str]:
        """The tables that a generation is made of; None: one of today's definition."""

    @abstractmethod
    def is_there(self, generation: CutGeneration) -> bool:
        """Whether a generation is there, and nobody has made another one of its name."""

    def is_shown(self, generation: CutGeneration) -> bool:
        """Whether it has been published already: whoever did it may have died before the record."""
        del generation
        return False

    @abstractmethod
    def suits(self, generation: CutGeneration, at: Instant) -> bool:
        """Whether a generation's own definition still fits the tables at a cut."""

    @abstractmethod
    def unfit(self, generation: CutGeneration, at: Instant, newest: Instant) -> str | None:
        """Why no differences lead a generation from one cut to another, if that is so."""

    @abstractmethod
    def adapted(self, generation: CutGeneration, newest: Instant) -> CutGeneration | str:
        """A generation that has all that the definition and the tables have; or why none can."""

    @abstractmethod
    def begin(self, at: Instant, after: CutGeneration | None) -> CutLoad[CutGeneration]:
        """Make a generation, empty, in whose slices everything as of the cut will be."""

    @abstractmethod
    def load(self, loading: CutLoad[CutGeneration], at: Instant) -> None:
        """Write the next slice, as of a cut."""

    @abstractmethod
    def write_changed(self, generation: CutGeneration, at: Instant, to: Instant) -> None:
        """Bring a generation from one cut to another, all of it or those slices that are done.

        It may be there already, or half of the way.
        """

    @abstractmethod
    def publish(self, generation: CutGeneration) -> None:
        """Let a loaded generation serve, as far as that isn't told by the record alone."""

    def is_timed(self, generation: CutGeneration) -> bool:
        """Whether it is another one at each cut, though no row of its tables is."""
        del generation
        return False

    def say(self, text: str) -> None:
        """Tell the user."""
        self.report(Lines(f"{on_one_line(self.name)}: {on_one_line(text)}"))


class CutRun(Generic[CutGeneration]):
    """One run of one target; ``once`` is all that there is to call."""

    def __init__(
        self,
        cuts: Instants,
        target: CutTarget[CutGeneration],
        while_waiting: Callable[[], None] = wait_on,
    ) -> None:
        """``while_waiting`` raises where the command was told to end, and its jobs cancelled."""
        self._cuts = cuts
        self._target = target
        self._while_waiting = while_waiting

    @property
    def _record(self) -> CutRecord[CutGeneration]:
        return self._target.record

    def once(self, *, rebuilt: bool = False) -> bool:
        """Bring the target to the newest cut, by a new generation where it is to be ``rebuilt``.

        Returns whether its tables, or what serves, have changed. Raises MillraceError where it
        can't be brought there; what serves stays as it is.
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
        """Bring what there is to the newest cut, or begin a new generation there."""
        loading = self._record.loading
        if loading is not None and self._target.is_shown(loading.into):
            self._write(serves=loading.into, loading=None, frozen=False)
        newest = self._newest()
        if self._must_begin(newest) or (rebuilt and self._record.loading is None):
            self._begin(newest)
        self._advance(newest)

    def _newest(self) -> Instant:
        """The newest cut at which all stands that is read, also by the generation that serves."""
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
        """Whether a cut is older than the one that is reached, of the same history."""
        at = self._record.at
        return at is not None and at.cut > newest.cut and self._cuts.has(at)

    def _must_begin(self, newest: Instant) -> bool:
        """Whether a generation is to be loaded from the beginning, and none is on its way."""
        reason = self._unfit(newest)
        if reason is not None:
            self._write(frozen=True, to=None, loading=None)
        else:
            reason = self._outgrown(newest)
        if reason:
            self._target.say(f"{reason}: loading a new {self._target.what}")
        return reason is not None

    def _unfit(self, newest: Instant) -> str | None:
        """Why no differences lead from where the generations are to the newest cut."""
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
        """Why the generation that was begun last isn't the one to have; empty: it never was."""
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
        """Make a new generation, and note that it is to be loaded as of this cut.

        What serves is brought there first. Where that can't be, it stays as it is from now on: the
        generation that is to take its place may well be the mend.
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
        """Write what has changed since the cut that is reached; first, what was begun before."""
        if self._record.to is not None:
            self._apply(self._record.to)
        at = self._record.at
        if at is None or at.run == newest.run:
            if at != newest and at is not None:  # what it reads was compacted
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
        assert at is not None  # noqa: S101 (who goes on has begun)
        for generation in self._record.written:
            self._target.write_changed(generation, at, to)
        self._write(at=to, to=None)

    def _load(self, loading: CutLoad[CutGeneration]) -> None:
        """Load the next slice, as of the cut that is reached; with the last one, publish."""
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
