"""A fault that a user can solve → one message, where, remedy, exit code, and retry or not.

Everything else is our bug (exit code 1). ``millrace.py`` turns these into text without secrets.
"""

import errno
from enum import IntEnum
from typing import Final, NamedTuple

from cdc.lines import Lines, on_one_line


class ExitCode(IntEnum):
    """Exit codes of every command; docs/reference/errors.md explains each."""

    OK = 0
    BUG = 1
    CONFIG = 2
    NOTHING_TO_DO = 3
    BUSY = 4
    NOT_DONE = 5
    SPILL = 6
    SOURCE_UNREACHABLE = 10
    SOURCE_AUTHENTICATION = 11
    SOURCE_SETTING = 12
    SOURCE_PRIVILEGE = 13
    SLOT_IN_USE = 14
    PUBLICATION = 15
    TABLE_REFUSED = 16
    GAP = 17
    CORRUPT_MESSAGE = 18
    SLOT_LAG = 19
    LOG_UNREACHABLE = 20
    LOG_ACCESS = 21
    TOPIC_MISMATCH = 22
    RECORD_REFUSED = 23
    LOG_FORMAT = 24
    FENCED = 25
    REGISTRY_UNREACHABLE = 26
    CONVERSION = 27
    REGISTRY_REFUSED = 28
    SINK = 30
    SINK_UNREACHABLE = 31
    SPARK_MISSING = 32
    LOG_FORGOTTEN = 33
    REBUILT = 34
    DISK = 35
    CHECK_FAILED = 36
    NOT_SHOWN = 37
    MEMORY = 38
    LOG_MISSING = 39
    DIFFERS = 40
    NOT_COMPARED = 41
    NOT_REPAIRED = 42
    INTERRUPTED = 130


class MillraceError(Exception):
    """Base of all errors that a user can cause or solve."""

    exit_code = ExitCode.BUG
    retry = False
    """Whether the daemon restarts itself, with back-off, after it has streamed."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = map(on_one_line, (what, where, remedy))
        super().__init__(self.what)

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        remedy = f"\n  → {self.remedy}" if self.remedy else ""
        return Lines(f"{self.what}{where}{remedy}")


class ConfigError(MillraceError):
    """The configuration file, an environment variable or an argument is wrong."""

    exit_code = ExitCode.CONFIG


class ExtensionError(MillraceError):
    """Millrace's compiled part is missing, or was built from other sources."""

    exit_code = ExitCode.SPARK_MISSING


class BusyError(MillraceError):
    """Another run of the same job is active."""

    exit_code = ExitCode.BUSY


class SpillError(MillraceError):
    """The disk doesn't store, or return, data that is too large for memory."""

    exit_code = ExitCode.SPILL
    retry = True


class NotDoneError(MillraceError):
    """The daemon hasn't finished a request in time. The request stays."""

    exit_code = ExitCode.NOT_DONE


class SourceError(MillraceError):
    """Base of errors on PostgreSQL's side."""


class SourceUnreachableError(SourceError):
    """PostgreSQL can't be reached, or a connection was lost."""

    exit_code = ExitCode.SOURCE_UNREACHABLE
    retry = True


class TableLockedError(SourceUnreachableError):
    """Another session holds a lock on a table that excludes even readers."""


class SourceAuthenticationError(SourceError):
    """PostgreSQL refused the role, the password or the certificate."""

    exit_code = ExitCode.SOURCE_AUTHENTICATION


class SourceSettingError(SourceError):
    """A server setting makes logical replication impossible (``wal_level`` and the like)."""

    exit_code = ExitCode.SOURCE_SETTING


class StandbyError(SourceSettingError):
    """The server is a standby, or isn't promoted yet."""

    retry = True


class SourcePrivilegeError(SourceError):
    """The role lacks a right, as an attempt has shown."""

    exit_code = ExitCode.SOURCE_PRIVILEGE


class SlotInUseError(SourceError):
    """Another session holds the slot, or another daemon has the right to it."""

    exit_code = ExitCode.SLOT_IN_USE
    retry = True


class PublicationError(SourceError):
    """The publication is missing, or doesn't match the configuration."""

    exit_code = ExitCode.PUBLICATION


class UndecodableError(PublicationError):
    """The WAL has changes of a time when the publication didn't exist."""


class TableRefusedError(SourceError):
    """A table can't be captured as configured (no key, no replica identity)."""

    exit_code = ExitCode.TABLE_REFUSED


class TablePublicationError(TableRefusedError):
    """A table isn't published, or only in part, but the configuration asks for all of it."""

    exit_code = ExitCode.PUBLICATION


class TablePrivilegeError(TableRefusedError):
    """The role may not read a table's rows."""

    exit_code = ExitCode.SOURCE_PRIVILEGE


class TableChangedError(TableRefusedError):
    """A table has changed since it was looked up a moment ago. Another lookup helps."""

    retry = True


class TableGoneError(TableChangedError):
    """A table was dropped or renamed, or isn't published any longer."""


class UnreadTableError(SourceError):
    """Changes arrive for a table whose rows were never read: it is new, or was renamed."""

    exit_code = ExitCode.TABLE_REFUSED
    retry = True


class GapError(SourceError):
    """The slot can't deliver everything after the recorded position."""

    exit_code = ExitCode.GAP


class DecodingCrashError(SourceError):
    """The server crashes whenever it decodes the WAL after the recorded position."""

    exit_code = ExitCode.GAP


class SlotLagError(SourceError):
    """The slot holds back more WAL than ``slot.max.lag.bytes`` allows."""

    exit_code = ExitCode.SLOT_LAG


class CorruptMessageError(SourceError):
    """Bytes from the replication stream violate the protocol."""

    exit_code = ExitCode.CORRUPT_MESSAGE


class BrokenRowError(CorruptMessageError):
    """A row doesn't match its table's columns. The stream itself is intact."""


class UnclearMessagesError(SourceError):
    """A transaction sent in progress can't be assembled. Sent whole, it can."""

    exit_code = ExitCode.CORRUPT_MESSAGE
    retry = True


class RefusedRecord(NamedTuple):
    """The refused record: one of ``suspects``, from position ``first`` to ``last``.

    Positions are text, empty if unknown. ``topic`` is its own. A single suspect has its ``key``,
    and ``position`` belongs to the record with that key.
    """

    topic: str
    key: bytes | None
    first: str
    last: str
    suspects: int
    position: str = ""


class LogError(MillraceError):
    """Base of errors on Kafka's side."""


class LogUnreachableError(LogError):
    """No broker answers, or one has been silent longer than we can wait."""

    exit_code = ExitCode.LOG_UNREACHABLE
    retry = True


class LogAccessError(LogError):
    """Kafka refused authentication, TLS or an operation's authorization."""

    exit_code = ExitCode.LOG_ACCESS


class TopicMismatchError(LogError):
    """A topic exists with other partitions or settings than the recorded or configured ones."""

    exit_code = ExitCode.TOPIC_MISMATCH


class RecordRefusedError(LogError):
    """The broker refuses a record (too large, no key in a compacted topic, disk full)."""

    exit_code = ExitCode.RECORD_REFUSED
    refused: RefusedRecord | None = None


class LogMissingError(LogError):
    """No log exists: no daemon has written under this ``topic.prefix`` yet."""

    exit_code = ExitCode.LOG_MISSING


class LogFormatError(LogError):
    """A newer Millrace has written a state record, or it is damaged."""

    exit_code = ExitCode.LOG_FORMAT


class FencedError(LogError):
    """Another daemon has taken over. A restart is safe, as it takes the slot before the log."""

    exit_code = ExitCode.FENCED
    retry = True


class RegistryError(LogError):
    """The schema registry refuses a schema, the credentials or the certificate."""

    exit_code = ExitCode.REGISTRY_REFUSED


class SchemaRefusedError(RegistryError):
    """The schema registry refuses the schema of one subject, and accepts others."""


class RegistryUnreachableError(RegistryError):
    """The schema registry doesn't answer, or reports that it can't now."""

    exit_code = ExitCode.REGISTRY_UNREACHABLE
    retry = True


class ConversionError(LogError):
    """An event can't take the form that the converter or a transform asks for."""

    exit_code = ExitCode.CONVERSION


ROW_ERRORS: Final = (
    BrokenRowError,
    ConversionError,
    RecordRefusedError,
    SchemaRefusedError,
    TableRefusedError,
)
"""Errors in making a record of a row, which concern its table and no other."""


class SinkError(MillraceError):
    """A lakehouse table or an index can't be written or read."""

    exit_code = ExitCode.SINK


class SinkUnreachableError(SinkError):
    """The search server or the lakehouse's file system doesn't answer."""

    exit_code = ExitCode.SINK_UNREACHABLE


class SparkEndedError(SinkUnreachableError):
    """The JVM of this process has ended, and the process can't start another."""


class SparkTerminatedError(SparkEndedError):
    """The JVM of this process got a signal to end, as a supervisor sends it to all processes."""

    exit_code = ExitCode.INTERRUPTED


class DriverMemoryError(SparkEndedError):
    """The JVM of this process ran out of memory, and has ended."""

    exit_code = ExitCode.MEMORY


class ExecutorMemoryError(SinkUnreachableError):
    """The JVM of one of the cluster's executors ran out of memory."""

    exit_code = ExitCode.MEMORY


DISK_REMEDIES: Final = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota of this process's user",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "mount it writable; if the kernel made it read-only, dmesg says why",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "allow this process's user to write there"),
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
    errno.EIO: "read dmesg: the disk fails",
}
"""Error number of a refused write → the remedy."""


class DiskError(SinkUnreachableError):
    """A file system refuses a write: it is full, or has another limit."""

    exit_code = ExitCode.DISK

    @classmethod
    def of(cls, error: OSError, what: str = "can't write a file") -> "DiskError | None":
        """Return this error for the system's error. None if it is of another kind."""
        if (remedy := DISK_REMEDIES.get(error.errno or 0)) is None:
            return None
        return cls(f"{what}: {error.strerror}", where=str(error.filename or ""), remedy=remedy)


class SparkMissingError(SinkError):
    """Spark, Java, or a jar that the merge jobs need is missing."""

    exit_code = ExitCode.SPARK_MISSING


class LogForgottenError(SinkError):
    """The sink runs later than ``log.keep`` allows. The log may lack changes not applied yet."""

    exit_code = ExitCode.LOG_FORGOTTEN
