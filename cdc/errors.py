"""What can go wrong that a user can mend: one message, where, remedy, exit code, and retry or not.

All else is our bug (exit code 1). ``millrace.py`` turns these into text, which has no secret.
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
    """Base of all errors that a user can cause or mend."""

    exit_code = ExitCode.BUG
    retry = False
    """Whether the daemon starts over by itself, with back-off, once it has been streaming."""

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
    """Millrace's compiled part isn't there, or was built from other sources."""

    exit_code = ExitCode.SPARK_MISSING


class BusyError(MillraceError):
    """Another run of the same job is under way."""

    exit_code = ExitCode.BUSY


class SpillError(MillraceError):
    """The disk doesn't take, or give back, what is too much for memory."""

    exit_code = ExitCode.SPILL
    retry = True


class NotDoneError(MillraceError):
    """The daemon hasn't done in time what it was asked for; the order stands."""

    exit_code = ExitCode.NOT_DONE


class SourceError(MillraceError):
    """Base of what is wrong at PostgreSQL's side."""


class SourceUnreachableError(SourceError):
    """No connection to PostgreSQL, or a connection lost."""

    exit_code = ExitCode.SOURCE_UNREACHABLE
    retry = True


class TableLockedError(SourceUnreachableError):
    """Somebody holds a lock on a table that keeps even readers out."""


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
    """The role lacks a right; found by trying."""

    exit_code = ExitCode.SOURCE_PRIVILEGE


class SlotInUseError(SourceError):
    """Another session holds the slot, or another daemon the right to it."""

    exit_code = ExitCode.SLOT_IN_USE
    retry = True


class PublicationError(SourceError):
    """The publication is missing, or is not what the configuration asks for."""

    exit_code = ExitCode.PUBLICATION


class UndecodableError(PublicationError):
    """The WAL has changes of a time at which the publication didn't exist."""


class TableRefusedError(SourceError):
    """A table can't be captured as configured (no key, no replica identity)."""

    exit_code = ExitCode.TABLE_REFUSED


class TablePublicationError(TableRefusedError):
    """A table isn't published, or only in part, and the configuration asks for all of it."""

    exit_code = ExitCode.PUBLICATION


class TablePrivilegeError(TableRefusedError):
    """The role may not read a table's rows."""

    exit_code = ExitCode.SOURCE_PRIVILEGE


class TableChangedError(TableRefusedError):
    """A table isn't what it was when it was looked up, a moment ago; looked up anew, it is."""

    retry = True


class TableGoneError(TableChangedError):
    """A table was dropped, has another name, or isn't published any more."""


class UnreadTableError(SourceError):
    """Changes arrive of a table whose rows were never read: it is new, or has another name."""

    exit_code = ExitCode.TABLE_REFUSED
    retry = True


class GapError(SourceError):
    """The slot can no longer give everything after the recorded position."""

    exit_code = ExitCode.GAP


class DecodingCrashError(SourceError):
    """The server crashes each time that it decodes what comes after the recorded position."""

    exit_code = ExitCode.GAP


class SlotLagError(SourceError):
    """The slot holds back more WAL than ``slot.max.lag.bytes`` lets it."""

    exit_code = ExitCode.SLOT_LAG


class CorruptMessageError(SourceError):
    """Bytes from the replication stream that are not what the protocol says."""

    exit_code = ExitCode.CORRUPT_MESSAGE


class BrokenRowError(CorruptMessageError):
    """A row that isn't what its table's columns say: the stream itself is as it should be."""


class UnclearMessagesError(SourceError):
    """A transaction that was sent while it ran can't be put together; sent whole, it can."""

    exit_code = ExitCode.CORRUPT_MESSAGE
    retry = True


class RefusedRecord(NamedTuple):
    """What is known of a refused record: one of ``suspects``, from position ``first`` to ``last``.

    Positions are text, empty where they aren't known. ``topic`` is its own, and if it is the only
    one, so is ``key``; ``position`` is of the record that has the key.
    """

    topic: str
    key: bytes | None
    first: str
    last: str
    suspects: int
    position: str = ""


class LogError(MillraceError):
    """Base of what is wrong at Kafka's side."""


class LogUnreachableError(LogError):
    """No broker answers, or it stopped answering for longer than we can wait."""

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
    """There is no log to read: no daemon has written under this ``topic.prefix`` yet."""

    exit_code = ExitCode.LOG_MISSING


class LogFormatError(LogError):
    """A state record was written by a newer Millrace, or is damaged."""

    exit_code = ExitCode.LOG_FORMAT


class FencedError(LogError):
    """Another daemon has taken over; to start over is safe, as the slot is taken before the log."""

    exit_code = ExitCode.FENCED
    retry = True


class RegistryError(LogError):
    """The schema registry refuses a schema, the credentials or the certificate."""

    exit_code = ExitCode.REGISTRY_REFUSED


class SchemaRefusedError(RegistryError):
    """The schema registry refuses the schema of one subject, and takes others."""


class RegistryUnreachableError(RegistryError):
    """The schema registry doesn't answer, or answers that it can't at the moment."""

    exit_code = ExitCode.REGISTRY_UNREACHABLE
    retry = True


class ConversionError(LogError):
    """An event can't take the form that the converter or a transform is to give it."""

    exit_code = ExitCode.CONVERSION


ROW_ERRORS: Final = (
    BrokenRowError,
    ConversionError,
    RecordRefusedError,
    SchemaRefusedError,
    TableRefusedError,
)
"""What is raised where a record can't be made of a row: its table is concerned, and no other."""


class SinkError(MillraceError):
    """A lakehouse table or an index can't be written or read."""

    exit_code = ExitCode.SINK


class SinkUnreachableError(SinkError):
    """The search server or the lakehouse's file system doesn't answer."""

    exit_code = ExitCode.SINK_UNREACHABLE


class SparkEndedError(SinkUnreachableError):
    """The JVM of this process has ended, and there is no other one for it."""


class SparkTerminatedError(SparkEndedError):
    """The JVM of this process got a signal that asks it to end, as a supervisor sends to all."""

    exit_code = ExitCode.INTERRUPTED


class DriverMemoryError(SparkEndedError):
    """The JVM of this process had too little memory, and has ended."""

    exit_code = ExitCode.MEMORY


class ExecutorMemoryError(SinkUnreachableError):
    """The JVM of one of a cluster's executors had too little memory."""

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
"""What a file system refuses a write by → what helps."""


class DiskError(SinkUnreachableError):
    """A file system doesn't take what is to be written: it is full, or refuses."""

    exit_code = ExitCode.DISK

    @classmethod
    def of(cls, error: OSError, what: str = "can't write a file") -> "DiskError | None":
        """The system's error; None for one that isn't of this kind."""
        if (remedy := DISK_REMEDIES.get(error.errno or 0)) is None:
            return None
        return cls(f"{what}: {error.strerror}", where=str(error.filename or ""), remedy=remedy)


class SparkMissingError(SinkError):
    """Spark, Java, or one of the jars that the merge jobs need is not there."""

    exit_code = ExitCode.SPARK_MISSING


class LogForgottenError(SinkError):
    """The sink comes later than ``log.keep``: the log may lack changes that it hasn't applied."""

    exit_code = ExitCode.LOG_FORGOTTEN
