"""Records as bytes in one buffer → Python's objects, once the client gets them.

A single record needs seven objects, each with its allocation. In this form, many records share two.
"""

cdef object HEADER_NAME = HEADER

cdef struct Span:
    Py_ssize_t value  # its start; the header is right after the key
    Py_ssize_t value_bytes  # NONE: it has no value; the same for the key
    Py_ssize_t key
    Py_ssize_t key_bytes
    Py_ssize_t header_bytes
    Py_ssize_t table

cdef enum:
    NONE = -1
    HEADER_BYTES_MAX = 71


@cython.final
cdef class PackedRecords:
    """Records of the compiled way, in order: a sequence of Record."""

    cdef Out out
    cdef Span* spans
    cdef Py_ssize_t end  # of the records' bytes in out
    cdef Py_ssize_t count, room, sent
    cdef list tables
    cdef Table table  # the last one
    cdef readonly Py_ssize_t size
    """Number of bytes of keys and values."""

    def __cinit__(self, Py_ssize_t room):
        self.tables = []
        self.table = None
        reserve(&self.out, room)

    def __dealloc__(self):
        PyMem_Free(self.out.data)
        PyMem_Free(self.spans)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t number):
        cdef Table table
        if not 0 <= number < self.count:
            raise IndexError("a record that there isn't")
        span = &self.spans[number]
        table = <Table>self.tables[span.table]
        headers = self._headers(table, self._position(span))
        return Record(table.topic, self._key(span), self._value(span), headers)

    cdef int add(self, Table table, Span* span) except -1:
        """Add a record whose bytes are all in ``out``."""
        cdef Span* spans
        if self.count == self.room:
            spans = <Span*>PyMem_Realloc(self.spans, max(8, 2 * self.room) * sizeof(Span))
            if spans == NULL:
                raise MemoryError
            self.spans, self.room = spans, max(8, 2 * self.room)
        if table is not self.table:
            self.tables.append(table)
            self.table = table
        span.table = PyList_GET_SIZE(self.tables) - 1
        self.spans[self.count] = span[0]
        self.count += 1
        self.size += max(0, span.value_bytes) + max(0, span.key_bytes)
        self.end = self.out.size
        return 0

    cdef int end_here(self) except -1:
        """Free unused memory: payloads for ``slow`` split the stream into many small buffers."""
        cdef char* data
        if self.out.room > 2 * self.end:
            data = <char*>PyMem_Realloc(self.out.data, self.end)
            if data == NULL:
                raise MemoryError
            self.out.data, self.out.size, self.out.room = data, self.end, self.end
        return 0

    cdef object _key(self, Span* span):
        return self._bytes(span.key, span.key_bytes)

    cdef object _value(self, Span* span):
        return self._bytes(span.value, span.value_bytes)

    cdef list _headers(self, Table table, object position):
        if not table.headers and table.positions:
            return [(HEADER_NAME, position)]
        return [*table.headers, (HEADER_NAME, position)] if table.positions else [*table.headers]

    cdef object _position(self, Span* span):
        return self._bytes(span.key + max(0, span.key_bytes), span.header_bytes)

    cdef inline bint _is_at(self, Span* span, bytes position):
        """Return whether a record has this position; all rows of a snapshot have the same one."""
        return span.header_bytes == PyBytes_GET_SIZE(position) and not memcmp(
            self.out.data + span.key + max(0, span.key_bytes),
            PyBytes_AS_STRING(position),
            span.header_bytes,
        )

    cdef inline object _bytes(self, Py_ssize_t start, Py_ssize_t size):
        return None if size == NONE else PyBytes_FromStringAndSize(self.out.data + start, size)

    cdef bint produce(self, send, WrittenRecords written) except -1:
        """Hand over the records not sent yet; return False if the queue is full before the end."""
        cdef Table table, last = None
        cdef bytes position = None
        cdef list headers
        cdef Py_ssize_t size
        while self.sent < self.count:
            span = &self.spans[self.sent]
            table = <Table>self.tables[span.table]
            key, value = self._key(span), self._value(span)
            if table is not last or not self._is_at(span, position):
                last, position = table, self._position(span)
                headers = self._headers(table, position)
            try:
                send(table.topic, value, key, -1, None, None, 0, headers)
            except BufferError:
                return False
            except BaseException:
                written.culprit = self[self.sent]
                raise
            size = max(0, span.value_bytes) + max(0, span.key_bytes)
            written.note(table.topic, key, size, position)
            self.sent += 1
        self.sent = 0
        return True


cdef struct Note:
    uint64_t key  # hash of its topic and key
    Py_ssize_t size
    uint8_t header_bytes
    char header[71]  # HEADER_BYTES_MAX


@cython.final
cdef class WrittenRecords:
    """The open Kafka transaction's records, as far as a later refusal must name them.

    The client's reports have no headers. So the position at the source is noted here for each
    record, without an object per record.
    """

    cdef Note* notes
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t size
    cdef public object culprit

    def __dealloc__(self):
        PyMem_Free(self.notes)

    def __len__(self):
        return self.count

    def clear(self):
        self.count = self.size = 0

    def add(self, record):
        topic, key, value, headers, _, _ = record
        position = b""
        for name, header in headers:
            if name == HEADER_NAME:
                position = header
        self.note(topic, key, bytes_of(key) + bytes_of(value), position)

    cdef int note(self, object topic, object key, Py_ssize_t size, bytes header) except -1:
        cdef Note* note
        cdef Note* notes
        if self.count == self.room:
            notes = <Note*>PyMem_Realloc(self.notes, max(1024, 2 * self.room) * sizeof(Note))
            if notes == NULL:
                raise MemoryError
            self.notes, self.room = notes, max(1024, 2 * self.room)
        note = &self.notes[self.count]
        note.key = note_key(topic, key)
        note.size = size
        note.header_bytes = min(PyBytes_GET_SIZE(header), HEADER_BYTES_MAX)
        memcpy(note.header, PyBytes_AS_STRING(header), note.header_bytes)
        self.count += 1
        self.size += size
        return 0

    def position(self, topic, key, Py_ssize_t size):
        cdef uint64_t sought = note_key(topic, key)
        cdef Py_ssize_t number
        for number in range(self.count):
            note = &self.notes[number]
            if note.key == sought and note.size == size:
                return PyBytes_FromStringAndSize(note.header, note.header_bytes)
        return b""

    def span(self):
        first = last = b""
        for number in range(self.count):
            note = &self.notes[number]
            if note.header_bytes:
                last = PyBytes_FromStringAndSize(note.header, note.header_bytes)
                first = first or last
        return first, last


cdef uint64_t note_key(object topic, object key) except? 0:
    return <uint64_t>hash(topic) * 31 + <uint64_t>hash(key)


cdef inline Py_ssize_t bytes_of(object field) except -1:
    return 0 if field is None else len(field)


def produce(send, list records, Py_ssize_t start, Py_ssize_t end, WrittenRecords written):
    """Hand a range of the records to the client; return where its queue was full, or the end.

    A batch of rows may need several calls: the next one continues where the queue was full.
    """
    cdef Py_ssize_t number
    if not 0 <= start <= end <= PyList_GET_SIZE(records):
        raise ValueError("a range outside of the records")
    for number in range(start, end):
        made = records[number]
        if type(made) is PackedRecords:
            if not (<PackedRecords>made).produce(send, written):
                return number
            continue
        topic, key, value, headers, partition, timestamp_ms = made
        try:
            send(topic, value, key, -1 if partition is None else partition, None, None, timestamp_ms, headers)
        except BufferError:
            return number
        except BaseException:
            written.culprit = made
            raise
        written.add(made)
    return end
