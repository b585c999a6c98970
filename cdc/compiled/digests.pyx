# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, freethreading_compatible=False
"""Lines of COPY's text format → a hash of each row's key and one of the row, for a comparison.

It has its own rules for values, and shares no code with the encoder that makes events: both sides
of the comparison would have the same fault. A value has the hash that Spark's ``xxhash64`` gives
the derived table's value: XXH64, with the hash of the columns before as its seed. Columns that are
null are skipped, and the list of them is hashed at the end. A text that isn't of its column's form
is hashed as text, so it equals nothing.

Rows are summed by buckets, which are the first 16 bits of the key's hash. Two tables with the same
sums have the same rows. Groups, which are the first bits of that hash, keep records of the rows:
the hashes of key and row (8 bytes each), the size of the key's text (4 bytes), and that text as
COPY has it.
https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.2
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc, strtod, strtof
from libc.string cimport memchr, memcmp, memcpy

include "xxh64.pxi"
include "read_texts.pxi"

cdef extern from *:
    const char* MILLRACE_SOURCES

SOURCES = MILLRACE_SOURCES.decode()

cdef enum:
    BUCKET_BITS = 16
    BUCKETS = 1 << 16
    HEAD_BYTES = 20


cdef struct Field:  # a column of the line
    const uint8_t* text
    Py_ssize_t size

cdef struct Buffer:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t room

cdef struct Sum:  # of a bucket's rows: their number, and the sums of their hashes' halves
    uint64_t rows
    uint64_t low
    uint64_t high


cdef bint grown(Buffer* buffer, Py_ssize_t more) noexcept nogil:
    """Reserve room; return whether that succeeded."""
    cdef Py_ssize_t room
    cdef void* data
    if buffer.size + more > buffer.room:
        room = max(buffer.room * 2, buffer.size + more, 4096)
        data = realloc(buffer.data, room)
        if data == NULL:
            return False
        buffer.data, buffer.room = <uint8_t*>data, room
    return True


cdef inline Py_ssize_t body_size(const uint8_t* p) noexcept nogil:
    """Return the size of a message's body, without the length's own bytes."""
    cdef uint32_t size = (<uint32_t>p[1] << 24) | (<uint32_t>p[2] << 16) | (p[3] << 8) | p[4]
    return <Py_ssize_t>size - 4


def hash_of(int kind, int scale, bytes text, int64_t seed=42):
    """Return the hash of one value that isn't an array, as a signed number."""
    cdef bytearray copy = bytearray(text)
    cdef Value value
    copy.append(0)
    value.text, value.size = <const uint8_t*><char*>copy, len(text)
    value.is_number = value.is_null = False
    if not read_as(kind, scale, &value):
        value.is_number = False
    return <int64_t>hash_value(&value, <uint64_t>seed)


@cython.final
cdef class Digests:
    """COPY's rows → hashes, which are kept until a caller takes them.

    ``kinds``, ``scales`` and ``converts`` say how each of a line's columns is read: a function
    returns bytes or None, or the hash of an array with dimensions. If ``unfit`` is true, a value
    that its kind can't hold is null. ``key`` has the places of the key's columns, in its order. If
    it is empty, the whole row is the key. With ``group_bits``, records are kept in that many
    groups, as a power of two. With ``keeps_columns``, the hashes of a row's columns are kept, too.
    """

    cdef readonly uint64_t rows
    """Number of rows read."""
    cdef readonly uint64_t pending_bytes
    """Number of bytes that a caller can take."""
    cdef int width, keys, group_bits
    cdef int* kinds
    cdef int* scales
    cdef bint* unfit
    cdef int* key
    cdef Field* fields
    cdef Value* values
    cdef Sum* sums
    cdef Buffer* groups
    cdef Buffer scratch
    cdef tuple converts
    cdef list converted, columns
    cdef bint is_plain, keeps_columns, has_odd
    cdef object failure

    def __cinit__(
        self, kinds, scales, unfit, converts, key, int group_bits=0, bint keeps_columns=False
    ):
        cdef int number
        self.width, self.keys, self.group_bits = len(kinds), len(key), group_bits
        if not 0 <= group_bits <= 12 or not len(kinds) == len(scales) == len(unfit) == len(converts):
            raise ValueError("columns that don't fit each other")
        if not all(0 <= place < self.width for place in key):
            raise ValueError("a key that the line doesn't have")
        self.kinds = <int*>PyMem_Malloc(max(1, self.width) * sizeof(int))
        self.scales = <int*>PyMem_Malloc(max(1, self.width) * sizeof(int))
        self.unfit = <bint*>PyMem_Malloc(max(1, self.width) * sizeof(bint))
        self.key = <int*>PyMem_Malloc(max(1, self.keys) * sizeof(int))
        self.fields = <Field*>PyMem_Malloc(max(1, self.width) * sizeof(Field))
        self.values = <Value*>PyMem_Malloc(max(1, self.width) * sizeof(Value))
        self.sums = <Sum*>PyMem_Calloc(BUCKETS, sizeof(Sum))
        self.groups = <Buffer*>PyMem_Calloc(1 << group_bits, sizeof(Buffer))
        if NULL in (self.kinds, self.scales, self.unfit, self.key):
            raise MemoryError
        if NULL in (self.fields, self.values, self.sums, self.groups):
            raise MemoryError
        for number in range(self.width):
            self.kinds[number] = kinds[number]
            self.scales[number] = scales[number]
            self.unfit[number] = unfit[number]
        for number in range(self.keys):
            self.key[number] = key[number]
        self.converts = tuple(converts)
        self.converted = [None] * self.width
        self.is_plain = CONVERTED not in kinds and not keeps_columns
        self.keeps_columns = keeps_columns
        self.columns = []

    def __dealloc__(self):
        cdef int number
        if self.groups != NULL:
            for number in range(1 << self.group_bits):
                free(self.groups[number].data)
        PyMem_Free(self.kinds)
        PyMem_Free(self.scales)
        PyMem_Free(self.unfit)
        PyMem_Free(self.key)
        PyMem_Free(self.fields)
        PyMem_Free(self.values)
        PyMem_Free(self.sums)
        PyMem_Free(self.groups)
        free(self.scratch.data)

    def feed(self, bytearray data, Py_ssize_t start, Py_ssize_t end):
        """Read a part of ``data``; return where the first incomplete CopyData message begins.

        Raises ValueError for a line with too few or too many columns.
        """
        cdef Py_buffer view
        cdef Py_ssize_t stop = start
        cdef int state
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise ValueError("a range outside of the buffer")
            self.failure = None
            with nogil:
                state = self._feed(<const uint8_t*>view.buf, &stop, end)
        finally:
            PyBuffer_Release(&view)
        if state == -1:
            raise ValueError("a line of COPY with other columns than its table")
        if state == -2:
            raise MemoryError
        if self.failure is not None:
            raise self.failure
        return stop

    cdef int _feed(self, const uint8_t* data, Py_ssize_t* start, Py_ssize_t end) noexcept nogil:
        cdef Py_ssize_t at = start[0], size
        cdef int state = 0
        while state == 0 and end - at >= 5 and data[at] == c"d":
            size = body_size(data + at)
            if size < 0 or end - at < 5 + size:
                break
            state = self._cut(data + at + 5, size)
            if state == 0:
                self._read_plain()
                if self.has_odd or not self.is_plain:
                    state = self._convert()
            if state == 0:
                state = self._add()
            at += 5 + size
        start[0] = at
        return state

    cdef int _cut(self, const uint8_t* p, Py_ssize_t size) noexcept nogil:
        """Cut a line into its fields; -1 if there are too few or too many."""
        cdef const uint8_t* tab
        cdef Py_ssize_t at = 0, stop
        cdef int number
        if size < 1 or p[size - 1] != c"\n":
            return -1
        size -= 1
        self.scratch.size = 0
        if not grown(&self.scratch, 3 * size + 2 * self.width + 2):
            return -2
        if self.width == 0:
            return 0 if size == 0 else -1
        for number in range(self.width):
            tab = <const uint8_t*>memchr(p + at, c"\t", size - at)
            if (tab == NULL) != (number == self.width - 1):
                return -1
            stop = size if tab == NULL else tab - p
            self.fields[number].text = p + at
            self.fields[number].size = stop - at
            at = stop + 1
        return 0

    cdef void _read_plain(self) noexcept nogil:
        """Read each field as its column's kind."""
        cdef int number
        self.has_odd = False
        for number in range(self.width):
            self._read(number)

    cdef void _read(self, int number) noexcept nogil:
        cdef Field* field = &self.fields[number]
        cdef Value* value = &self.values[number]
        cdef uint8_t* copy
        cdef int state
        value.text, value.size = field.text, field.size
        value.is_number = value.is_odd = False
        value.is_null = field.size == 2 and field.text[0] == c"\\" and field.text[1] == c"N"
        if self.kinds[number] == NOTHING:
            value.is_null = True
        if value.is_null:
            return
        if memchr(field.text, c"\\", field.size) != NULL:
            copy = self.scratch.data + self.scratch.size
            value.size = unescaped(field.text, field.size, copy)
            value.text = copy
            copy[value.size] = 0  # a delimiter follows the others
            self.scratch.size += value.size + 1
        if self.kinds[number] >= ARRAY:
            copy = self.scratch.data + self.scratch.size
            state = read_array(value, self.kinds[number] - ARRAY, self.scales[number], copy)
        else:
            state = read_as(self.kinds[number], self.scales[number], value)
        if state == ANOTHER:
            value.is_number = False
            value.is_null = self.unfit[number]
        elif state == NESTED:
            value.is_odd = self.has_odd = True

    cdef int _convert(self) noexcept with gil:
        """Convert a row's values with Python; keep an exception for later."""
        try:
            self._convert_all()
            if self.keeps_columns:
                self.columns.append(self._of_columns())
        except Exception as error:
            self.failure = error
            return -3
        return 0

    cdef int _convert_all(self) except -1:
        """Convert values of other kinds with their functions: a text becomes bytes, or null."""
        cdef int number
        cdef Value* value
        for number in range(self.width):
            value = &self.values[number]
            if value.is_null or not (value.is_odd or self.kinds[number] == CONVERTED):
                continue
            text = PyBytes_FromStringAndSize(<const char*>value.text, value.size)
            converted = self.converts[number](text)
            self.converted[number] = converted
            value.is_null = converted is None
            if isinstance(converted, int):
                value.number, value.is_number = converted, True
            elif converted is not None:
                value.text = <const uint8_t*>PyBytes_AS_STRING(<bytes?>converted)
                value.size = PyBytes_GET_SIZE(converted)
        return 0

    cdef uint64_t _hash(self, const int* places, int count) noexcept nogil:
        """Hash some columns (all without ``places``), and which of them are null."""
        cdef uint64_t hash = SEED, nulls = 0
        cdef int at, number
        for at in range(count):
            number = at if places == NULL else places[at]
            hash = hash_value(&self.values[number], hash)
            nulls |= <uint64_t>self.values[number].is_null << (at % 63)
            if at % 63 == 62 or at == count - 1:
                hash = hash_number(<int64_t>nulls, hash)
                nulls = 0
        return hash

    cdef int _add(self) noexcept nogil:
        cdef uint64_t row = self._hash(NULL, self.width)
        cdef uint64_t key = self._hash(self.key, self.keys) if self.keys else row
        # Spark sorts the hashes as signed numbers.
        cdef uint64_t ordered = key ^ (<uint64_t>1 << 63)
        cdef Sum* sum = &self.sums[ordered >> (64 - BUCKET_BITS)]
        cdef Buffer* group = self.groups
        cdef uint32_t size = 0
        cdef int at
        cdef Field* field
        if self.group_bits:
            group = &self.groups[ordered >> (64 - self.group_bits)]
        sum.rows += 1
        sum.low += <uint32_t>row
        sum.high += row >> 32
        for at in range(self.keys):
            size += <uint32_t>self.fields[self.key[at]].size + (at > 0)
        if not grown(group, HEAD_BYTES + size):
            return -2
        memcpy(group.data + group.size, &key, 8)
        memcpy(group.data + group.size + 8, &row, 8)
        memcpy(group.data + group.size + 16, &size, 4)
        group.size += HEAD_BYTES
        for at in range(self.keys):
            field = &self.fields[self.key[at]]
            if at:
                group.data[group.size] = c"\t"
                group.size += 1
            memcpy(group.data + group.size, field.text, field.size)
            group.size += field.size
        self.rows += 1
        self.pending_bytes += HEAD_BYTES + size
        return 0

    cdef object _of_columns(self):
        """Return the hash of each column, None if it is null."""
        cdef int number
        cdef uint64_t key = self._hash(self.key, self.keys)
        cdef list hashes = [
            None
            if self.values[number].is_null
            else <int64_t>hash_value(&self.values[number], SEED)
            for number in range(self.width)
        ]
        return <int64_t>key, hashes

    def take(self):
        """Return each group's records since the last call, by the group's number."""
        cdef int number
        cdef Buffer* group
        taken = []
        for number in range(1 << self.group_bits):
            group = &self.groups[number]
            if group.size:
                records = PyBytes_FromStringAndSize(<const char*>group.data, group.size)
                taken.append((number, records))
                group.size = 0
        self.pending_bytes = 0
        return taken

    def take_columns(self):
        """Return each new row's hash of the key, and its columns' hashes (None: null)."""
        taken, self.columns = self.columns, []
        return taken

    def sums_of_buckets(self):
        """Return each bucket's number of rows, and the sums of their hashes' halves."""
        cdef int number
        return {
            number: (self.sums[number].rows, self.sums[number].low, self.sums[number].high)
            for number in range(BUCKETS)
            if self.sums[number].rows
        }
