# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, freethreading_compatible=False
"""CopyData bytes → records, in one pass: the compiled way for the common kinds of change and column.

It does what translation.py, events.py and values.py say, byte for byte (tests/properties), for
Begin, Commit, Insert, Update and Delete of tables whose events are plain JSON. Everything else goes
back to them: a message that it doesn't know or that is wrong in any way is given to ``slow`` as if
it hadn't been looked at, and a column's text that it doesn't know goes through the column's own
function. So each rule and each error has one definition, which isn't here.

Safety: a length is compared with what is left before it is used; room for the longest form that a
column can take is reserved before it is written; a message counts only when its last byte was used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, strlen

from cdc.errors import CorruptMessageError
from cdc.records.position import HEADER, Lsn, Position
from cdc.records.record import Record
from cdc.transactions import Transaction

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject*, Py_ssize_t)
    void PyObject_GC_UnTrack(object made)
    PyObject* PyTuple_GET_ITEM(object made, Py_ssize_t place)
    void PyTuple_SET_ITEM(object made, Py_ssize_t place, object item)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

include "json_text.pxi"

cdef object RECORD = Record
cdef object HEADER_NAME = HEADER
cdef int64_t POSTGRES_EPOCH_US = 946_684_800_000_000
cdef int64_t INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF
cdef Py_ssize_t OUT_BYTES_MAX = 4 << 20  # kept from one row to the next; a huge row's room isn't
cdef int TIME_DIGITS_MAX = 6
cdef int VERSION_BYTES_MAX = 22  # "/" and a number; what _headers has room for
cdef bytes AFTER_LSN = b',"xmin":null,"origin":null,"origin_lsn":null},"transaction":null,"op":"'


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline bint has_time(const uint8_t* p) noexcept nogil:
    """Whether µs since 2000 are within 64 bits when counted since 1970, too."""
    return <int64_t>be64(p) <= INT64_MAX - POSTGRES_EPOCH_US


cdef class Cursor:
    """As cdc.transactions.Cursor, which says what each member means."""

    cdef uint64_t epoch, commit_lsn, end, previous, last, index
    cdef uint64_t reached_lsn, reached_index, cut_lsn, cut_index
    cdef int64_t commit_ts_us, _cut_ts_us
    cdef uint32_t xid
    cdef bint inside, has_previous, has_last, has_any
    cdef object made  # the Transaction, once somebody has asked for it
    cdef char place[26]  # "<epoch>.<commit LSN>." of the position header

    def __init__(self, reached, cut, flush_lsn, cut_ts_us=0):
        self.epoch = reached.epoch
        self.reached_lsn, self.reached_index = reached.commit_lsn, reached.index
        self.cut_lsn, self.cut_index = cut.commit_lsn, cut.index
        self.end = flush_lsn
        self._cut_ts_us = cut_ts_us

    @property
    def reached(self):
        return Position(self.epoch, Lsn(self.reached_lsn), self.reached_index)

    @property
    def cut(self):
        return Position(self.epoch, Lsn(self.cut_lsn), self.cut_index)

    @property
    def cut_ts_us(self):
        return self._cut_ts_us

    @property
    def flush_lsn(self):
        return Lsn(self.end)

    @property
    def transaction(self):
        return self.latest if self.inside else None

    @property
    def latest(self):
        if self.made is None and self.has_any:
            previous = Lsn(self.previous) if self.has_previous else None
            self.made = Transaction(self.xid, Lsn(self.commit_lsn), self.commit_ts_us, previous)
        return self.made

    def begin(self, xid, commit_lsn, commit_ts_us):
        if self.inside:
            raise CorruptMessageError("Begin inside of a transaction", where=f"LSN {commit_lsn}")
        self._begin(xid, commit_lsn, commit_ts_us)
        return self.transaction

    cdef void _begin(self, uint32_t xid, uint64_t commit_lsn, int64_t commit_ts_us) noexcept:
        self.xid, self.commit_lsn, self.commit_ts_us = xid, commit_lsn, commit_ts_us
        self.previous, self.has_previous = self.last, self.has_last
        self.inside = self.has_any = True
        self.made = None
        self.index = 0
        hexadecimal(self.place, self.epoch, 8)
        self.place[8] = c"."
        hexadecimal(self.place + 9, commit_lsn, 16)
        self.place[25] = c"."

    def next(self):
        if not self.inside:
            raise CorruptMessageError("a row outside of a transaction")
        if not self._next():
            return None
        return Position(self.epoch, Lsn(self.commit_lsn), self.index)

    cdef inline bint _is_new(self) noexcept:
        """Whether the next frame isn't in the log yet."""
        return self.commit_lsn > self.reached_lsn or (
            self.commit_lsn == self.reached_lsn and self.index + 1 > self.reached_index
        )

    cdef inline bint _next(self) noexcept:
        cdef bint new = self._is_new()
        self.index += 1
        if new:
            self.reached_lsn, self.reached_index = self.commit_lsn, self.index
        return new

    @property
    def place(self):
        if not self.inside:
            raise CorruptMessageError("a row outside of a transaction")
        return Position(self.epoch, Lsn(self.commit_lsn), self.index)

    @property
    def is_ended(self):
        return self.place <= self.cut

    def message_at(self, lsn):
        if self.inside:
            raise CorruptMessageError("a message inside of a transaction", where=f"LSN {lsn}")
        position = Position(self.epoch, lsn, 1)
        if position <= self.reached:
            return None
        self.reached_lsn, self.reached_index = lsn, 1
        if position > self.cut:
            self.cut_lsn, self.cut_index = lsn, 1
        return position

    def commit(self, commit_lsn, end_lsn):
        if not self.inside or self.commit_lsn != <uint64_t>commit_lsn:
            raise CorruptMessageError("Commit of another transaction", where=f"LSN {commit_lsn}")
        transaction = self.transaction
        self._commit(end_lsn)
        return transaction

    cdef void _commit(self, uint64_t end_lsn) noexcept:
        cdef uint64_t lsn = self.commit_lsn
        self.inside = False
        self.last, self.has_last = lsn, True
        self._cut_ts_us = self.commit_ts_us
        if lsn > self.reached_lsn or (lsn == self.reached_lsn and self.index > self.reached_index):
            self.reached_lsn, self.reached_index = lsn, self.index
        if lsn > self.cut_lsn or (lsn == self.cut_lsn and self.index > self.cut_index):
            self.cut_lsn, self.cut_index = lsn, self.index
        self.end = max(self.end, end_lsn)

    def idle_at(self, wal_end):
        cdef uint64_t lsn = wal_end
        if self.inside or lsn <= self.end:
            return
        if lsn > self.reached_lsn:
            self.reached_lsn, self.reached_index = lsn, 0
        if lsn > self.cut_lsn:
            self.cut_lsn, self.cut_index = lsn, 0
        self.end = lsn


cdef inline object record(object topic, object key, object value, object headers):
    """Record(topic, key, value, headers), without the call of a Python function."""
    made = (<PyTypeObject*>RECORD).tp_alloc(<PyTypeObject*>RECORD, 6)
    PyObject_GC_UnTrack(made)  # it can't be part of a cycle, and there are millions of it
    put_item(made, 0, topic)
    put_item(made, 1, key)
    put_item(made, 2, value)
    put_item(made, 3, headers)
    put_item(made, 4, None)
    put_item(made, 5, 0)
    return made


cdef inline void put_item(object made, Py_ssize_t place, object item):
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, place, item)


cdef inline Py_ssize_t bytes_of(object part):
    return 0 if part is None else PyBytes_GET_SIZE(part)


cdef inline Py_ssize_t record_bytes(object made):
    return bytes_of(<object>PyTuple_GET_ITEM(made, 1)) + bytes_of(<object>PyTuple_GET_ITEM(made, 2))


cdef struct Note:
    uint64_t key  # topic's and key's hashes
    Py_ssize_t size
    uint8_t header_bytes
    char header[71]


cdef class Written:
    """As cdc.kafka.written.Written, without keeping a single object."""

    cdef Note* notes
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t size

    def __dealloc__(self):
        PyMem_Free(self.notes)

    def __len__(self):
        return self.count

    def clear(self):
        self.count = self.size = 0

    def add(self, record):
        self._add(record)

    cdef int _add(self, object made) except -1:
        cdef Note* note
        cdef Note* notes
        if self.count == self.room:
            notes = <Note*>PyMem_Realloc(self.notes, max(1024, 2 * self.room) * sizeof(Note))
            if notes == NULL:
                raise MemoryError
            self.notes, self.room = notes, max(1024, 2 * self.room)
        note = &self.notes[self.count]
        note.key = note_key(
            <object>PyTuple_GET_ITEM(made, 0), <object>PyTuple_GET_ITEM(made, 1)
        )
        note.size = record_bytes(made)
        note.header_bytes = 0
        for name, value in <list>PyTuple_GET_ITEM(made, 3):
            if name == HEADER_NAME:  # its first part is the position
                note.header_bytes = min(PyBytes_GET_SIZE(value), sizeof(note.header))
                memcpy(note.header, PyBytes_AS_STRING(value), note.header_bytes)
        self.count += 1
        self.size += note.size
        return 0

    def position(self, topic, key, Py_ssize_t size):
        cdef uint64_t sought = note_key(topic, key)
        cdef Py_ssize_t number
        for number in range(self.count):
            note = &self.notes[number]
            if note.key == sought and note.size == size:
                return PyBytes_FromStringAndSize(note.header, note.header_bytes)
        return b""


cdef uint64_t note_key(object topic, object key) except? 0:
    return <uint64_t>hash(topic) * 31 + <uint64_t>hash(key)


def produce(send, list records, Py_ssize_t start, Py_ssize_t end, Written written):
    """As cdc.kafka.written.produce."""
    cdef Py_ssize_t number
    if not 0 <= start <= end <= PyList_GET_SIZE(records):
        raise ValueError("a part of the records that there isn't")
    for number in range(start, end):
        made = records[number]
        topic = <object>PyTuple_GET_ITEM(made, 0)
        key = <object>PyTuple_GET_ITEM(made, 1)
        value = <object>PyTuple_GET_ITEM(made, 2)
        headers = <object>PyTuple_GET_ITEM(made, 3)
        place = <object>PyTuple_GET_ITEM(made, 4)
        timestamp_ms = <object>PyTuple_GET_ITEM(made, 5)
        if place is None:
            place = -1
        try:
            send(topic, value, key, place, None, None, timestamp_ms, headers)
        except BufferError:
            return number
        written._add(made)
    return end


cdef struct Column:
    int kind
    int digits
    const char* name  # ,"name":
    Py_ssize_t name_bytes
    const char* null  # what stands for NULL, its name included; likewise the next two
    Py_ssize_t null_bytes
    const char* absent
    Py_ssize_t absent_bytes
    const char* unsent
    Py_ssize_t unsent_bytes


cdef struct Cell:
    uint8_t kind
    const uint8_t* text
    Py_ssize_t size


cdef class Table:
    """What the compiled way has to know of a table: a TableEncoder's constants, as bytes.

    ``columns``: per column its kind (cdc.values.codec.Kind), number of digits, ``,"name":``, what stands for NULL,
    for an absent value and for one that an old key doesn't carry, and its text → JSON function.
    ``flags``: whether its topic is compacted, and whether unchanged values are read again.
    ``source``: the text of the source block up to ``ts_ms``, on to ``sequence``, and on to ``txId``.
    """

    cdef object topic, keep, fragments
    cdef Column* columns
    cdef Cell* cells
    cdef Cell* olds
    cdef Py_ssize_t* starts
    cdef Py_ssize_t* ends
    cdef int* key
    cdef int width, key_width
    cdef bint compacted, reselects
    cdef bytes head, middle, tail, version
    cdef Out before_lsn, between  # the transaction's texts, cut where a row's own LSN goes
    cdef uint64_t entered

    def __cinit__(self, topic, columns, key, source, flags, version):
        cdef int number
        if len(version) > VERSION_BYTES_MAX or not all(0 <= index < len(columns) for index in key):
            raise ValueError("a version or a key that no table has")
        self.topic, self.version = topic, version
        self.compacted, self.reselects = flags
        self.head, self.middle, self.tail = source
        self.keep = [column[2:6] for column in columns]
        self.fragments = [column[6] for column in columns]
        self.width, self.key_width = len(columns), len(key)
        self.columns = <Column*>PyMem_Malloc(max(1, self.width) * sizeof(Column))
        self.cells = <Cell*>PyMem_Malloc(max(1, self.width) * sizeof(Cell))
        self.olds = <Cell*>PyMem_Malloc(max(1, self.width) * sizeof(Cell))
        self.starts = <Py_ssize_t*>PyMem_Malloc(max(1, self.width) * sizeof(Py_ssize_t))
        self.ends = <Py_ssize_t*>PyMem_Malloc(max(1, self.width) * sizeof(Py_ssize_t))
        self.key = <int*>PyMem_Malloc(max(1, self.key_width) * sizeof(int))
        if not (self.columns and self.cells and self.olds and self.starts and self.ends and self.key):
            raise MemoryError
        for number, index in enumerate(key):
            self.key[number] = index
        for number, column in enumerate(columns):
            self.columns[number].kind, self.columns[number].digits = column[0], column[1]
            if column[0] == TIMESTAMPTZ and not 0 <= column[1] <= TIME_DIGITS_MAX:
                self.columns[number].kind = OTHER
            text(column[2], &self.columns[number].name, &self.columns[number].name_bytes)
            text(column[3], &self.columns[number].null, &self.columns[number].null_bytes)
            text(column[4], &self.columns[number].absent, &self.columns[number].absent_bytes)
            text(column[5], &self.columns[number].unsent, &self.columns[number].unsent_bytes)

    def __dealloc__(self):
        PyMem_Free(self.columns)
        PyMem_Free(self.cells)
        PyMem_Free(self.olds)
        PyMem_Free(self.starts)
        PyMem_Free(self.ends)
        PyMem_Free(self.key)
        PyMem_Free(self.before_lsn.data)
        PyMem_Free(self.between.data)

    cdef int enter(self, Cursor cursor, uint64_t serial) except -1:
        """Write what all rows of the transaction share; as events._SourceText.of_transaction."""
        cdef int64_t us = cursor.commit_ts_us
        cdef Out* out = &self.before_lsn
        self.entered = serial
        out.size = self.between.size = 0
        reserve(out, len(self.head) + len(self.middle) + 80)
        put_bytes(out, self.head)
        put_signed(out, us // 1_000 if us >= 0 else -((-us + 999) // 1_000))
        put_bytes(out, self.middle)
        if cursor.has_previous:
            put_literal(out, b'\\"')
            put_number(out, cursor.previous)
            put_literal(out, b'\\"')
        else:
            put_literal(out, b"null")
        put_literal(out, b',\\"')
        out = &self.between
        reserve(out, len(self.tail) + 120)
        put_literal(out, b'\\"]","ts_us":')
        put_signed(out, us)
        put_literal(out, b',"ts_ns":')
        put_signed(out, us)
        if us:
            put_literal(out, b"000")
        put_bytes(out, self.tail)
        put_number(out, cursor.xid)
        put_literal(out, b',"lsn":')
        return 0


cdef int text(bytes value, const char** start, Py_ssize_t* size) except -1:
    start[0] = PyBytes_AS_STRING(value)
    size[0] = PyBytes_GET_SIZE(value)
    return 0


cdef Py_ssize_t tuple_of(
    const uint8_t* p, Py_ssize_t size, Py_ssize_t at, Cell* cells, int width
) noexcept nogil:
    """Cut a tuple into cells; returns where it ends, or -1."""
    cdef int number
    cdef uint32_t length
    if size - at < 2 or ((p[at] << 8) | p[at + 1]) != width:
        return -1
    at += 2
    for number in range(width):
        if at >= size:
            return -1
        cells[number].kind = p[at]
        at += 1
        if p[at - 1] == c"t":
            if size - at < 4:
                return -1
            length = be32(p + at)
            at += 4
            if length > <size_t>(size - at):
                return -1
            cells[number].text = p + at
            cells[number].size = length
            at += length
        elif p[at - 1] != c"n" and p[at - 1] != c"u":
            return -1
    return at


cdef Py_ssize_t skipped(const uint8_t* p, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
    """Where a tuple of any width ends, or -1: as ``tuple_of`` with nobody who wants its cells."""
    cdef int width
    cdef uint32_t length
    if size - at < 2:
        return -1
    width = (p[at] << 8) | p[at + 1]
    at += 2
    while width:
        width -= 1
        if at >= size:
            return -1
        at += 1
        if p[at - 1] == c"t":
            if size - at < 4:
                return -1
            length = be32(p + at)
            at += 4
            if length > <size_t>(size - at):
                return -1
            at += length
        elif p[at - 1] != c"n" and p[at - 1] != c"u":
            return -1
    return at


cdef bint is_row(uint8_t kind, const uint8_t* m, Py_ssize_t size) noexcept nogil:
    """Whether a row message that nobody reads is one: what is wrong is an error all the same."""
    cdef Py_ssize_t at = 5
    if kind != c"I" and (m[5] == c"K" or m[5] == c"O"):
        at = skipped(m, size, 6)
        if at < 0:
            return False
        if kind == c"D":
            return at == size
    if kind == c"D" or at >= size or m[at] != c"N":
        return False
    return skipped(m, size, at + 1) == size


cdef class Translator:
    """CopyData messages → records, appended to ``records``; what it doesn't do goes to ``slow``.

    ``table(oid, position)`` gives a relation's Table, None where its rows aren't wanted in this
    transaction, or False where ``slow`` has to do it; ``slow(payload)`` takes a CopyData payload, and
    returns whether no more is to be made for now.
    """

    cdef Cursor cursor
    cdef object find, slow
    cdef list records
    cdef dict tables
    cdef set unwanted
    cdef Out out
    cdef char clock[80]
    cdef int clock_bytes
    cdef uint64_t serial, last_oid
    cdef Table last
    cdef readonly Py_ssize_t made_bytes
    """Key and value bytes of what the last call of ``feed`` has left in ``records``."""
    cdef readonly uint64_t received
    """Where the last message that was looked at starts in the WAL."""

    def __cinit__(self, Cursor cursor, list records, table, slow):
        self.cursor, self.records, self.find, self.slow = cursor, records, table, slow
        self.tables = {}
        self.unwanted = set()
        self.last = None

    def __dealloc__(self):
        PyMem_Free(self.out.data)

    def forget(self, oid):
        """A new Relation message: what the relation means is asked for again."""
        self.tables.pop(oid, None)
        self.unwanted.discard(oid)
        self.last = None

    def feed(
        self,
        data,
        Py_ssize_t start,
        Py_ssize_t end,
        int64_t clock_ns,
        Py_ssize_t records_max,
        Py_ssize_t bytes_max,
    ):
        """As Translation.feed."""
        cdef Py_buffer view
        cdef const uint8_t* p
        cdef Py_ssize_t length
        cdef int done
        self._set_clock(clock_ns)
        self.made_bytes = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise ValueError("a part of the buffer that it doesn't have")
            p = <const uint8_t*>view.buf
            while end - start >= 5 and p[start] == c"d":
                if PyList_GET_SIZE(self.records) >= records_max or self.made_bytes >= bytes_max:
                    break
                length = be32(p + start + 1)
                if length < 4 or length >= end - start:
                    break
                done = self._frame(p + start + 5, length - 4)
                if not done:
                    full = self.slow(PyBytes_FromStringAndSize(<const char*>p + start + 5, length - 4))
                start += length + 1
                if not done and full:
                    break
        finally:
            PyBuffer_Release(&view)
            if self.out.room > OUT_BYTES_MAX:
                release(&self.out)
        self._count_bytes()
        return start

    cdef int _count_bytes(self) except -1:
        """Those that ``slow`` has made count, too."""
        cdef Py_ssize_t number, size = 0
        for number in range(PyList_GET_SIZE(self.records)):
            size += record_bytes(self.records[number])
        self.made_bytes = size
        return 0

    cdef void _set_clock(self, int64_t ns) noexcept:
        """``","ts_ms":…,"ts_us":…,"ts_ns":…}``, the envelope's end."""
        cdef Out out
        out.data, out.size, out.room = self.clock, 0, sizeof(self.clock)
        put_literal(&out, b'","ts_ms":')
        put_signed(&out, ns // 1_000_000)
        put_literal(&out, b',"ts_us":')
        put_signed(&out, ns // 1_000)
        put_literal(&out, b',"ts_ns":')
        put_signed(&out, ns)
        put_literal(&out, b"}")
        self.clock_bytes = out.size

    cdef int _frame(self, const uint8_t* p, Py_ssize_t size) except -1:
        """One CopyData payload; 0 where it is for ``slow``."""
        cdef Cursor cursor = self.cursor
        cdef const uint8_t* m = p + 25
        cdef uint8_t kind
        if size < 26 or p[0] != c"w":
            return 0
        size -= 25
        kind = m[0]
        self.received = be64(p + 1)
        if kind == c"I" or kind == c"U" or kind == c"D":
            return self._row(kind, self.received, m, size)
        if kind == c"B" and size == 21 and not cursor.inside and has_time(m + 9):
            cursor._begin(be32(m + 17), be64(m + 1), <int64_t>be64(m + 9) + POSTGRES_EPOCH_US)
            self.serial += 1
            if self.unwanted:
                self.unwanted.clear()
            return 1
        if kind == c"C" and size == 26 and m[1] == 0 and cursor.inside and has_time(m + 18):
            if cursor.commit_lsn != be64(m + 2):
                return 0
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
            found = self._table(oid)
            if found is None:
                cursor._next()
                return 1
            if found is False:
                return 0
            table = <Table>found
            self.last, self.last_oid = table, oid
        if table.entered != self.serial:
            table.enter(cursor, self.serial)
        self.out.size = 0
        if kind == c"I":
            if m[5] != c"N" or tuple_of(m, size, 6, table.cells, table.width) != size:
                return 0
            return self._written(table, c"c", False, lsn)
        if kind == c"D":
            if m[5] != c"K" and m[5] != c"O":
                return 0
            if tuple_of(m, size, 6, table.cells, table.width) != size:
                return 0
            return self._deleted(table, m[5] == c"K", lsn)
        at = 5
        if m[5] == c"O":
            at = tuple_of(m, size, 6, table.olds, table.width)
            if at < 0:
                return 0
        if at >= size or m[at] != c"N":
            return 0
        if tuple_of(m, size, at + 1, table.cells, table.width) != size:
            return 0
        return self._written(table, c"u", at > 5, lsn)

    cdef object _table(self, uint32_t oid):
        found = self.tables.get(oid)
        if found is None and oid not in self.unwanted:
            cursor = self.cursor
            position = Position(cursor.epoch, Lsn(cursor.commit_lsn), cursor.index + 1)
            found = self.find(oid, position)
            if found is None:
                self.unwanted.add(oid)
            else:
                self.tables[oid] = found
        return found

    cdef int _written(self, Table table, uint8_t op, bint has_old, uint64_t lsn) except -1:
        """A create or update; an old row fills what is absent in the new one."""
        cdef Out* out = &self.out
        cdef int number
        cdef Py_ssize_t key_start
        if table.reselects:
            for number in range(table.width):
                if table.cells[number].kind == c"u" and (
                    not has_old or table.olds[number].kind == c"u"
                ):
                    return 0
        reserve(out, 256)
        put_literal(out, b'{"before":')
        if not has_old:
            put_literal(out, b"null")
        else:
            if not self._image(table, table.olds, False):
                return 0
            key_start = self._put_key(table)
            if key_start < 0:
                return 0
            old_key = PyBytes_FromStringAndSize(out.data + key_start, out.size - key_start)
            out.size = key_start
            for number in range(table.width):
                if table.cells[number].kind == c"u":
                    table.cells[number] = table.olds[number]
        put_literal(out, b',"after":')
        if not self._image(table, table.cells, False):
            return 0
        key_start = out.size
        key = None
        if table.key_width:
            if self._put_key(table) < 0:
                return 0
            key = PyBytes_FromStringAndSize(out.data + key_start, out.size - key_start)
            out.size = key_start
            if has_old and key != old_key:
                return 0
        self._append(table, op, lsn, key)
        return 1

    cdef int _deleted(self, Table table, bint is_key, uint64_t lsn) except -1:
        cdef Out* out = &self.out
        cdef Py_ssize_t start
        reserve(out, 256)
        put_literal(out, b'{"before":')
        if not self._image(table, table.cells, is_key):
            return 0
        start = out.size
        key = None
        if table.key_width:
            if self._put_key(table) < 0:
                return 0
            key = PyBytes_FromStringAndSize(out.data + start, out.size - start)
            out.size = start
        reserve(out, 256)
        put_literal(out, b',"after":null')
        headers = self._append(table, c"d", lsn, key)
        if table.compacted:
            self.records.append(record(table.topic, key, None, headers))
        return 1

    cdef object _append(self, Table table, uint8_t op, uint64_t lsn, object key):
        """End the value that was begun, and append its record; returns the record's headers."""
        cdef Out* out = &self.out
        self._end(table, op, lsn)
        headers = self._headers(table)
        value = PyBytes_FromStringAndSize(out.data, out.size)
        self.made_bytes += out.size
        self.records.append(record(table.topic, key, value, headers))
        return headers

    cdef int _image(self, Table table, Cell* cells, bint is_key) except -1:
        """A row as JSON; 0 where a text isn't of its column's type."""
        cdef Out* out = &self.out
        cdef Py_ssize_t start = out.size
        cdef int number
        cdef Column* column
        cdef Cell* cell
        for number in range(table.width):
            column = &table.columns[number]
            cell = &cells[number]
            table.starts[number] = out.size
            if cell.kind == c"t":
                reserve(out, column.name_bytes + longest(cell.text, cell.size))
                put(out, column.name, column.name_bytes)
                if not put_value(out, column.kind, column.digits, cell.text, cell.size):
                    if not self._odd(table, number, cell):
                        return 0
            elif cell.kind == c"n" and not is_key:
                reserve(out, column.null_bytes + 1)
                put(out, column.null, column.null_bytes)
            elif cell.kind == c"n":
                reserve(out, column.unsent_bytes + 1)
                put(out, column.unsent, column.unsent_bytes)
            else:
                reserve(out, column.absent_bytes + 1)
                put(out, column.absent, column.absent_bytes)
            table.ends[number] = out.size
        reserve(out, 256)
        if out.size == start:
            put_literal(out, b"{")
        else:
            out.data[start] = c"{"  # in place of the first column's comma
        put_literal(out, b"}")
        return 1

    cdef int _odd(self, Table table, int number, Cell* cell) except -1:
        """Write a text that only the column's own function knows, in place of what was begun."""
        cdef Out* out = &self.out
        cdef Py_ssize_t size
        cdef const char* written
        try:
            fragment = table.fragments[number](
                PyBytes_FromStringAndSize(<const char*>cell.text, cell.size)
            )
            written = PyUnicode_AsUTF8AndSize(fragment, &size)
        except Exception:
            return 0  # the slow way says what is wrong with it
        reserve(out, size + 64)
        put(out, written, size)
        return 1

    cdef Py_ssize_t _put_key(self, Table table) except -2:
        """Write the key's columns, from the image just written; where that starts, or -1."""
        cdef Out* out = &self.out
        cdef Py_ssize_t start = out.size, size
        cdef int number, index
        for number in range(table.key_width):
            index = table.key[number]
            size = table.ends[index] - table.starts[index]
            if size == 0:
                return -1
            reserve(out, size + 256)
            memcpy(out.data + out.size, out.data + table.starts[index], size)
            out.data[out.size] = c","  # the row's first column has given its comma for the brace
            out.size += size
        if out.size == start:
            return start
        out.data[start] = c"{"
        put_literal(out, b"}")
        return start

    cdef int _end(self, Table table, uint8_t op, uint64_t lsn) except -1:
        """Write everything after the rows."""
        cdef Out* out = &self.out
        cdef char digits[20]
        cdef int count = decimal(digits, lsn)
        reserve(out, table.before_lsn.size + table.between.size + len(AFTER_LSN) + 200)
        put(out, table.before_lsn.data, table.before_lsn.size)
        put(out, digits, count)
        put(out, table.between.data, table.between.size)
        put(out, digits, count)
        put_bytes(out, AFTER_LSN)
        out.data[out.size] = op
        out.size += 1
        put(out, self.clock, self.clock_bytes)
        return 0

    cdef object _headers(self, Table table):
        """Move on to the frame's position, and write it."""
        cdef char value[64]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(table.version)
        self.cursor._next()
        memcpy(value, self.cursor.place, 26)
        hexadecimal(value + 26, self.cursor.index, 16)
        memcpy(value + 42, PyBytes_AS_STRING(table.version), size)
        header = (HEADER_NAME, PyBytes_FromStringAndSize(value, 42 + size))
        headers = [header]
        PyObject_GC_UnTrack(header)
        PyObject_GC_UnTrack(headers)
        return headers
