# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, freethreading_compatible=False
"""CopyData bytes → records, in one pass: the common kinds of change and column.

It writes the same bytes as cdc/events/reference.py, cdc/convert/pipeline.py and cdc.values
(tests/properties proves it), for Begin, Commit, Insert, Update and Delete, and for the rows of a
COPY, of tables whose events are JSON. ``slow`` gets every other message, and every wrong one, as if
nothing had read it. The column's own function gets each text with an unknown form. So each rule and
each error is defined once, outside of this file.

Safety: a length is compared with the bytes left before its use. Room for the longest form of a
column is reserved before it is written. A message counts only once its last byte is used.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, strlen

from cdc.errors import CorruptMessageError
from cdc.records.position import HEADER, Lsn, Position
from cdc.records.record import Record
from cdc.records.position import Transaction, after_lsn

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from *:
    const char* MILLRACE_SOURCES

SOURCES = MILLRACE_SOURCES.decode()

include "json_text.pxi"
include "json_values.pxi"

cdef int64_t POSTGRES_EPOCH_US = 946_684_800_000_000
cdef int64_t INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF
cdef enum:
    ROOM_BYTES_MAX = 2 << 20  # allocated at once for rows not read yet
    VERSION_BYTES_MAX = 22  # "/" and a number
    POSITION_BYTES = 42
    NAME_BYTES = 32  # copied at once; longer names need a call
cdef dict DIGITS_MAX = {TIMESTAMPTZ: 6, DECIMAL: 18}
cdef bytes AFTER_LSN = after_lsn(None).encode()


include "transactions.pxi"
include "table.pxi"
include "rows.pxi"
include "writing.pxi"
include "copied.pxi"


@cython.final
cdef class Translator(Writing):
    """The stream's messages → records.

    ``table(oid, position)`` returns a relation's Table, None if the transaction skips its rows, or
    False if they are for ``slow``. Without ``table``, ``slow`` reads every message.
    """

    cdef Cursor cursor
    cdef object find
    cdef dict tables
    cdef set unwanted
    cdef uint64_t serial, last_oid
    cdef public object resumed  # an unsettled cdc.stream.resumed.Resumed, or None
    cdef Table last
    cdef object entered
    cdef bytes filled  # the header's field about filled columns
    cdef readonly uint64_t received
    """Where the last message starts in the WAL."""

    def __cinit__(self, Cursor cursor, list records, table, slow):
        self.cursor, self.records, self.find, self.slow = cursor, records, table, slow
        self.tables = {}
        self.unwanted = set()
        self.last = self.entered = None
        self.filled = b""

    def update(
        self, Table table, transaction, position, uint64_t lsn, old, bint old_is_key, new,
        bytes filled, int64_t clock_ns
    ):
        """Add the records of a completed update; return False if they are for ``slow``.

        The cursor moves to the row's position from any place, so it belongs to no stream.
        ``filled`` is the header's field about the values that were read again.
        """
        cdef Cursor cursor = self.cursor
        cdef bint is_written
        if not cells_of(new, table.cells, table.width):
            return False
        if old is not None and not cells_of(old, table.olds, table.width):
            return False
        if transaction is not self.entered:
            self.entered = transaction
            cursor._begin(transaction.xid, transaction.commit_lsn, transaction.commit_ts_us)
            cursor.has_previous = transaction.previous_commit_lsn is not None
            cursor.previous = transaction.previous_commit_lsn or 0
            cursor.after_lsn = after_lsn(transaction.origin).encode()
            self.serial += 1
        if table.entered != self.serial:
            table.enter(cursor, self.serial)
        cursor.index = position.index - 1
        self.filled = filled
        self._set_clock(clock_ns)
        self._open_rows()
        try:
            if old is not None and old_is_key:
                is_written = self._whole(self._moved(table, True, lsn))
            else:
                is_written = self._whole(self._written(table, c"u", old is not None, lsn))
        finally:
            self._close_rows()
        return is_written

    def forget(self, oid):
        """Forget a relation's table after its Relation message."""
        self.tables.pop(oid, None)
        self.unwanted.discard(oid)
        self.last = None

    cdef int _frame(self, const uint8_t* p, Py_ssize_t size) except -1:
        """Read one CopyData payload; 0 if it is for ``slow``."""
        cdef Cursor cursor = self.cursor
        cdef const uint8_t* m = p + 25
        cdef uint8_t kind
        if size < 26 or p[0] != c"w":
            return 0
        size -= 25
        kind = m[0]
        self.received = be64(p + 1)
        if self.find is None:
            return 0
        if kind == c"I" or kind == c"U" or kind == c"D":
            return self._row(kind, self.received, m, size)
        if kind == c"B" and size == 21 and not cursor.inside and has_time(m + 9):
            if self.resumed is not None:
                self.resumed.begins(Lsn(be64(m + 1)))
            cursor._begin(be32(m + 17), be64(m + 1), <int64_t>be64(m + 9) + POSTGRES_EPOCH_US)
            self.serial += 1
            if self.unwanted:
                self.unwanted.clear()
            return 1
        if kind == c"C" and size == 26 and m[1] == 0 and cursor.inside and has_time(m + 18):
            if cursor.commit_lsn != be64(m + 2):
                return 0
            if self.resumed is not None:
                self.resumed.ends(Lsn(cursor.commit_lsn), cursor.index)
            cursor._commit(be64(m + 10))
            return 1
        return 0

    cdef int _row(self, uint8_t kind, uint64_t lsn, const uint8_t* m, Py_ssize_t size) except -1:
        cdef Cursor cursor = self.cursor
        cdef Table table
        cdef uint32_t oid
        cdef Py_ssize_t at
        if size < 8 or not cursor.inside:
            return 0
        if not cursor._is_new():
            if not is_row(kind, m, size):
                return 0
            cursor._next()
            return 1
        oid = be32(m + 1)
        if self.last is not None and self.last_oid == oid:
            table = self.last
        else:
            if not is_row(kind, m, size):
                return 0
            resolved = self._table(oid)
            if resolved is None:
                cursor._next()
                return 1
            if resolved is False:
                return 0
            table = <Table>resolved
            self.last, self.last_oid = table, oid
        if table.entered != self.serial:
            table.enter(cursor, self.serial)
        if self.rows is None:
            self._open_rows()
        if kind == c"I":
            if m[5] != c"N" or tuple_of(m, size, 6, table.cells, table.width) != size:
                return 0
            return self._whole(self._written(table, c"c", False, lsn))
        if kind == c"D":
            if m[5] != c"K" and m[5] != c"O":
                return 0
            if tuple_of(m, size, 6, table.cells, table.width) != size:
                return 0
            return self._whole(self._deleted(table, m[5] == c"K", lsn))
        at = 5
        if m[5] == c"O" or m[5] == c"K":
            at = tuple_of(m, size, 6, table.olds, table.width)
            if at < 0:
                return 0
        if at >= size or m[at] != c"N":
            return 0
        if tuple_of(m, size, at + 1, table.cells, table.width) != size:
            return 0
        if m[5] == c"K":
            return self._whole(self._moved(table, True, lsn))
        return self._whole(self._written(table, c"u", at > 5, lsn))

    cdef inline int _whole(self, int is_written) except -1:
        """Remove the written bytes of a row that is for ``slow``."""
        if not is_written:
            self.rows.out.size = self.rows.end
        return is_written

    cdef object _table(self, uint32_t oid):
        table = self.tables.get(oid)
        if table is None and oid not in self.unwanted:
            cursor = self.cursor
            position = Position(cursor.epoch, Lsn(cursor.commit_lsn), cursor.index + 1)
            table = self.find(oid, position)
            if table is None:
                self.unwanted.add(oid)
            else:
                self.tables[oid] = table
        return table

    cdef int _written(self, Table table, uint8_t op, bint has_old, uint64_t lsn) except -1:
        """Write a create or update; an old row fills values that are absent in the new one."""
        cdef Out* out = &self.rows.out
        cdef Span span
        cdef int number
        if table.reselects:
            for number in range(table.width):
                if table.cells[number].kind == c"u" and (
                    not has_old or table.olds[number].kind == c"u"
                ):
                    return 0
        span.value = self._put_start(table, b'{"before":')
        if not has_old:
            put_literal(out, b"null")
        else:
            if not self._image(table, table.olds, table.old_extents, False):
                return 0
            for number in range(table.width):
                if table.cells[number].kind == c"u":
                    table.cells[number] = table.olds[number]
        put_literal(out, b',"after":')
        if not self._image(table, table.cells, table.extents, False):
            return 0
        if has_old and not self._same_key(table):
            out.size = self.rows.end
            return self._moved(table, False, lsn)
        if not self._put_end(table, op, lsn, &span):
            return 0
        self.cursor._next()
        self._add(table, &span)
        table.note(table.cells)
        if has_old:
            table.note(table.olds)  # the events' key may differ from the table's
        return 1

    cdef int _deleted(self, Table table, bint is_key, uint64_t lsn) except -1:
        cdef Span span
        if not self._put_deleted(table, table.cells, is_key, lsn, &span):
            return 0
        self.cursor._next()
        self._add_deleted(table, &span)
        table.note(table.cells)
        return 1

    cdef int _moved(self, Table table, bint is_key, uint64_t lsn) except -1:
        """Write an update that changed the key: a delete and its tombstone, then a create.

        A large key is sent even if it is unchanged. An unchanged key is for ``slow``.
        """
        cdef Out* out = &self.rows.out
        cdef Span deleted, created
        cdef int number
        cdef uint8_t kind
        if table.key_headers or not table.key_width:
            return 0
        for number in range(table.width):
            if table.cells[number].kind == c"u":
                kind = table.olds[number].kind
                if kind == c"t" or (kind == c"n" and not is_key):
                    table.cells[number] = table.olds[number]
                elif table.reselects:
                    return 0
        if not self._put_deleted(table, table.olds, is_key, lsn, &deleted):
            return 0
        created.value = self._put_start(table, b'{"before":null,"after":')
        if not self._image(table, table.cells, table.extents, False):
            return 0
        if not self._put_end(table, c"c", lsn, &created):
            return 0
        if deleted.key_bytes == created.key_bytes and not memcmp(
            out.data + deleted.key, out.data + created.key, deleted.key_bytes
        ):
            return 0
        self.cursor._next()
        self._add_deleted(table, &deleted)
        self._add(table, &created)
        table.note(table.cells)
        table.note(table.olds)
        return 1

    cdef int _put_deleted(
        self, Table table, Cell* cells, bint is_key, uint64_t lsn, Span* span
    ) except -1:
        cdef Out* out = &self.rows.out
        span.value = self._put_start(table, b'{"before":')
        if not self._image(table, cells, table.extents, is_key):
            return 0
        put_literal(out, b',"after":null')
        return self._put_end(table, c"d", lsn, span)

    cdef int _add_deleted(self, Table table, Span* span) except -1:
        """Add a delete, and its tombstone if tombstones are on."""
        self._add(table, span)
        if table.tombstones:
            span.value_bytes = NONE
            self._add(table, span)
        return 0

    cdef bint _same_key(self, Table table):
        """Return whether the row's key equals its old one, and neither lacks a column.

        PostgreSQL's texts decide: JSON has a default for NULL, which makes two keys equal.
        Different texts with the same meaning are for ``slow``.
        """
        cdef int number, index
        cdef Extent extent
        cdef Cell old, new
        for number in range(table.key_width):
            index = table.key[number]
            extent = table.old_extents[index]
            old, new = table.olds[index], table.cells[index]
            if extent.end == extent.start or old.kind != new.kind:
                return False
            if old.kind == c"t" and (
                old.size != new.size or memcmp(old.text, new.text, old.size)
            ):
                return False
        return True

    cdef int _put_end(self, Table table, uint8_t op, uint64_t lsn, Span* span) except -1:
        """Write the bytes after the rows, the key, and the header of the next position.

        0 if the record is for ``slow``. The cursor moves once all records of a frame are written.
        """
        cdef Out* out = &self.rows.out
        cdef char digits[20]
        cdef char* at
        cdef int count = decimal(digits, lsn)
        cdef bytes after = self.cursor.after_lsn
        reserve(
            out,
            table.before_lsn.size + table.between.size + PyBytes_GET_SIZE(after)
            + PyBytes_GET_SIZE(table.value_after) + 200,
        )
        put(out, table.before_lsn.data, table.before_lsn.size)
        put(out, digits, count)
        put(out, table.between.data, table.between.size)
        put(out, digits, count)
        put_bytes(out, after)
        put_byte(out, op)
        put(out, self.clock, self.clock_bytes)
        put_bytes(out, table.value_after)
        if not self._put_key(table, span):
            return 0
        reserve(out, POSITION_BYTES + VERSION_BYTES_MAX + PyBytes_GET_SIZE(self.filled))
        at = out.data + out.size
        memcpy(at, self.cursor.header_start, 26)
        hexadecimal(at + 26, self.cursor.index + 1, 16)
        out.size += POSITION_BYTES
        put_bytes(out, table.version)
        span.header_bytes = POSITION_BYTES + PyBytes_GET_SIZE(table.version)
        if op != c"d":
            put_bytes(out, self.filled)
            span.header_bytes += PyBytes_GET_SIZE(self.filled)
        return 1
