"""An instant of the source, and the states of log and sinks → what lacks it, and why.

An instant is an LSN up to which everything was committed. A derived table shows it if its cut is at
or past it, or if the log has everything up to there, and nothing that the table lacks.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from cdc.log.following import LastProgress, NewestRecords
from cdc.log.partitions import StateConsumer
from cdc.log.reports import ReportReader, Reports
from cdc.log.state import StateReader
from cdc.log.tails import Tails
from cdc.records.position import Lsn
from cdc.records.reports import RunReport, TableReport
from cdc.records.schema import TableSchema
from cdc.records.state import Phase, Progress, TableState
from cdc.records.topics import progress_topic, schema_topic, table_topic
from cdc.settings import Settings
from deploy.status.lag import SinkLags, has_reached, missing_from
from deploy.status.patience import give_up_after
from deploy.status.tables import seconds_text, time_text
from sinks.run.summary import SinkName
from sinks.run.wanted import CapturedTables, expected_tables, names_in_log, newest_schemas


class Outlook(StrEnum):
    """What to expect of a derived table that doesn't show an instant."""

    LATER = "later"
    """The daemon, or a merge, brings it there."""
    NEVER = "never"
    """Nothing does, until a user solves the problem."""
    UNKNOWN = "unknown"
    """Its progress is unknown."""


class Lacking(NamedTuple):
    """A part that lacks the instant, why, and what to expect."""

    part: str
    why: str
    outlook: Outlook = Outlook.LATER

    def __str__(self) -> str:
        return f"{self.part}: {self.why}"


class Watched:
    """The log's state topics over time. ``sinks`` are those of interest.

    Each read fetches only new records.
    """

    def __init__(self, settings: Settings, sinks: tuple[SinkName, ...], patience_s: float) -> None:
        self._settings = settings
        self._sinks = sinks
        kafka, prefix = settings.kafka, settings.capture.topic_prefix
        wait = give_up_after(patience_s)
        client, slot = StateConsumer(kafka, wait), settings.capture.slot_name
        self._progress = LastProgress(
            StateReader(kafka, wait), client, progress_topic(prefix), slot
        )
        self._states = NewestRecords(client, table_topic(prefix), TableState)
        self._schemas = NewestRecords(client, schema_topic(prefix), TableSchema)
        self._reports = ReportReader(kafka, prefix, wait)
        self._tails = Tails(kafka, wait)
        self.unseen: frozenset[str] = frozenset()
        """Captured tables that were missing the last time, as the daemon hadn't seen them yet."""

    def progress(self) -> Progress | None:
        """Return the log's progress."""
        return self._progress.read()

    def lacking(
        self, instant: Lsn, timeline: int | None = None, captured: Collection[str] = ()
    ) -> list[Lacking]:
        """Return the parts that lack the instant. Empty: all show it.

        An instant of a ``timeline`` that the log hasn't reached doesn't compare with its positions.
        The log may have nothing yet of new ``captured`` tables.
        """
        self.unseen = frozenset()
        progress = self.progress()
        if progress is None:
            return [Lacking("the log", "no daemon has begun it", Outlook.NEVER)]
        if progress.phase is not Phase.STREAMING:
            what = f"the first snapshot of epoch {progress.position.epoch} isn't complete"
            return [Lacking("the log", what, Outlook.NEVER)]
        if timeline is not None and progress.timeline != timeline:
            what = f"its timeline is {progress.timeline}, not {timeline} yet"
            return [Lacking("the log", f"{what}: the source was promoted")]
        reports = self._reports.read().of_log(progress.log)
        states = [each for each in self._states.read().values() if not each.gone_ms]
        newest = newest_schemas(self._schemas.read().values())
        in_log = CapturedTables.of(names_in_log(states), newest)
        wanted = {sink: self._expected(sink, in_log, reports).keys() for sink in self._sinks}
        # The key of a table that was never captured is unknown, but a sink needs the table anyway.
        unseen = {*captured} - {str(state.name) for state in states}
        names = (*(str(state.name) for state in states), *unseen)
        all_of_them = CapturedTables(names, frozenset(names) - in_log.keyless, in_log.keyless)
        made = [report for sink in self._sinks for report in reports.of_sink(sink)]
        made += [each for report in made for each in reports.sources(report).values() if each]
        sources = {report.source for report in made}
        for sink in self._sinks:
            sources.update(*self._expected(sink, all_of_them, reports).values())
        lacking = list(_unready(states, sources))
        unseen_why = "the daemon hasn't seen this new table yet"
        self.unseen = frozenset(unseen & sources)
        lacking += [Lacking(f"table {name}", unseen_why) for name in sorted(self.unseen)]
        is_logged = progress.flush_lsn >= instant or progress.cut.commit_lsn >= instant
        if not is_logged:
            lacking.append(Lacking("the log", f"it ends at {progress.flush_lsn}"))
        moment = _Moment(reports, instant, progress.position.epoch)
        behind = [each for sink, names in wanted.items() for each in moment.behind(sink, names)]
        if behind and is_logged:
            # The changes that a merge would bring are checked last, as that takes longest.
            last = self._tails.last(missing_from(reports))
            moment.lags = SinkLags(reports, last)
            behind = [each for sink, names in wanted.items() for each in moment.behind(sink, names)]
        return lacking + behind

    def _expected(
        self, sink: SinkName, captured: CapturedTables, reports: Reports
    ) -> dict[str, frozenset[str]]:
        """Return the expected derived tables, each with the captured tables that it is made of."""
        begun = [report.table for report in reports.of_sink(sink)]
        return expected_tables(self._settings, sink, captured, begun)


def _unready(states: Iterable[TableState], names: Collection[str]) -> Iterator[Lacking]:
    """Yield captured tables whose rows may be wrong or incomplete, so no derived one is right."""
    for name, state in sorted((str(state.name), state) for state in states):
        if name not in names:
            continue
        if state.doubt is not None:
            word = "set aside" if state.is_set_aside else "doubtful"
            yield Lacking(f"table {name}", f"{word}: {state.doubt.reason}", Outlook.NEVER)
        elif state.phase is not Phase.STREAMING:
            is_read = any(not (each.paused or each.obstacle) for each in state.requests)
            outlook = Outlook.LATER if is_read else Outlook.NEVER
            yield Lacking(f"table {name}", "its snapshot isn't complete", outlook)


class _Moment:
    """The reports of one moment. ``lags`` has what tables lack, once that is known."""

    def __init__(self, reports: Reports, instant: Lsn, epoch: int) -> None:
        self._reports = reports
        self._instant = instant
        self._epoch = epoch
        self.lags: SinkLags | None = None

    def behind(self, sink: str, wanted: Collection[str]) -> Iterator[Lacking]:
        """Yield a sink's derived tables that lack the instant, of the wanted and others."""
        run = self._reports.ended.get((sink, "merge"))
        running = self._reports.running.get((sink, "merge"))
        if run is None and running is None:
            yield Lacking(sink, "no run has reported its cut", Outlook.UNKNOWN)
            return
        tables = {report.table: report for report in self._reports.of_sink(sink)}
        for name in sorted({*wanted} - tables.keys()):
            yield Lacking(f"{sink}, {name}", "no run has loaded it yet")
        for name, report in tables.items():
            if not self._shows(report, run):
                yield Lacking(f"{sink}, {name}", self._why(report, run, running))

    def _shows(self, report: TableReport, run: RunReport | None) -> bool:
        if not report.shown or report.error:
            return False
        cuts = [report.cut]
        if run is not None and has_reached(run, report):
            cuts.append(run.cut)
        if any(cut and (cut.epoch, cut.commit_lsn) >= (self._epoch, self._instant) for cut in cuts):
            return True
        return self.lags is not None and self.lags.newest_missing_us(report) == 0

    def _why(self, report: TableReport, run: RunReport | None, running: RunReport | None) -> str:
        if report.error:
            return f"the last run failed to apply changes to it: {report.error}"
        if not report.shown:
            return "it isn't loaded yet"
        cut = report.cut.commit_lsn if report.cut is not None else "nothing"
        why = f"its cut is {cut}"
        if running is not None:
            return f"{why}; a run began at {time_text(running.started_ms)} UTC"
        if run is None or run.ended_ms is None:
            return why
        due = ""
        if run.next_due_ms is not None:
            due = (
                ", and the next is due in"
                f" {seconds_text((run.next_due_ms - run.ended_ms) / 1000.0)}"
            )
        return f"{why}; the last run ended at {time_text(run.ended_ms)} UTC{due}"
