"""Messages → cells → records: the code that the stream and COPY share, and how a tuple is cut.

No length is trusted that exceeds the message.
"""

cdef class Writing:
    """CopyData messages → records, in ``records``; ``slow`` gets those that ``_frame`` refuses.

    ``slow(payload)`` takes a CopyData payload, and returns whether reading must pause.
    """

    cdef object slow
    cdef list records
    cdef PackedRecords rows  # the last of the records, still growing
    cdef Py_ssize_t rows_room
    cdef Py_ssize_t records_accounted
    cdef char clock[80]
    cdef int clock_bytes
    cdef readonly Py_ssize_t made_records, made_bytes
    """Number of records of the last call of ``feed``, and of their keys' and values' bytes."""

    def __cinit__(self, *_):
        self.rows = None
        self.rows_room = 4096

    cdef int _frame(self, const uint8_t* p, Py_ssize_t size) except -1:
        """Read one CopyData payload; 0 if it is for ``slow``."""
        return 0

    def feed(
        self,
        data,
        Py_ssize_t start,
        Py_ssize_t end,
        int64_t clock_ns,
        Py_ssize_t records_max,
        Py_ssize_t bytes_max,
    ):
        """Read whole CopyData messages up to one of the limits; return where these end."""
        cdef Py_buffer view
        cdef const uint8_t* p
        cdef Py_ssize_t stop
        cdef bint full = False
        self._set_clock(clock_ns)
        self.made_records = self.made_bytes = self.records_accounted = 0
        self._count()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise ValueError("a range outside of the buffer")
            p = <const uint8_t*>view.buf
            while not full and self.made_records < records_max and self.made_bytes < bytes_max:
                stop = message_end(p, start, end)
                if stop == start:
                    break
                if not self._frame(p + start + 5, stop - start - 5):
                    full = self._slowly(p + start + 5, stop - start - 5)
                start = stop
        finally:
            PyBuffer_Release(&view)
            self._close_rows()
        return start

    @cython.final
    cdef bint _slowly(self, const uint8_t* payload, Py_ssize_t size) except -1:
        """Give a payload to ``slow``; its records follow those made before."""
        self._close_rows()
        full = self.slow(PyBytes_FromStringAndSize(<const char*>payload, size))
        self._count()
        return full

    @cython.final
    cdef int _count(self) except -1:
        """Count records that were made elsewhere."""
        for made in self.records[self.records_accounted:]:
            if type(made) is PackedRecords:
                self.made_records += (<PackedRecords>made).count
                self.made_bytes += (<PackedRecords>made).size
            else:
                self.made_records += 1
                self.made_bytes += bytes_of(made.key) + bytes_of(made.value)
        self.records_accounted = PyList_GET_SIZE(self.records)
        return 0

    @cython.final
    cdef int _open_rows(self) except -1:
        self.rows = PackedRecords(self.rows_room)
        self.records.append(self.rows)
        self.records_accounted += 1
        return 0

    @cython.final
    cdef int _close_rows(self) except -1:
        if self.rows is None:
            return 0
        if self.rows.count == 0:
            self.records.pop()
            self.records_accounted -= 1
        else:
            self.rows_room = min(self.rows.out.size + self.rows.out.size // 8, ROOM_BYTES_MAX)
            self.rows.end_here()
        self.rows = None
        return 0

    @cython.final
    cdef void _set_clock(self, int64_t ns) noexcept:
        """Write ``","ts_ms":…,"ts_us":…,"ts_ns":…}``, the envelope's end."""
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

    @cython.final
    cdef int _image(self, Table table, Cell* cells, Extent* extents, bint is_key) except -1:
        """Write a row as JSON; 0 if a text isn't of its column's type."""
        cdef Out* out = &self.rows.out
        cdef Py_ssize_t start = out.size, room = table.fixed_bytes + 64
        cdef int number
        cdef Column* column
        cdef Cell* cell
        for number in range(table.width):
            if cells[number].kind == c"t":
                room += longest(cells[number].text, cells[number].size)
        reserve(out, room)
        for number in range(table.width):
            column = &table.columns[number]
            cell = &cells[number]
            extents[number].start = out.size
            if column.kind == LEFT_OUT:
                pass
            elif cell.kind == c"t":
                put_name(out, column)
                if not put_value(out, column.kind, column.digits, cell.text, cell.size):
                    if not self._odd(table, number, cell, room):
                        return 0
            elif cell.kind == c"n" and not is_key:
                put(out, column.null, column.null_bytes)
            elif cell.kind == c"n":
                put(out, column.unsent, column.unsent_bytes)
            else:
                put(out, column.absent, column.absent_bytes)
            extents[number].end = out.size
        if out.size == start:
            put_literal(out, b"{")
        else:
            out.data[start] = c"{"  # replaces the first column's comma
        put_literal(out, b"}")
        return 1

    @cython.final
    cdef int _odd(self, Table table, int number, Cell* cell, Py_ssize_t room) except -1:
        """Write a text that only the column's own function knows; keep ``room`` bytes after it."""
        cdef Out* out = &self.rows.out
        cdef Py_ssize_t size
        cdef const char* written
        try:
            decode, write = table.functions[number]
            fragment = write(
                decode(PyBytes_FromStringAndSize(<const char*>cell.text, cell.size))
            )
            written = PyUnicode_AsUTF8AndSize(fragment, &size)
        except Exception:
            return 0  # the slow way reports the error
        reserve(out, size + room)
        put(out, written, size)
        return 1

    @cython.final
    cdef Py_ssize_t _put_start(self, Table table, const char* text) except -1:
        """Begin a value; return its start."""
        cdef Out* out = &self.rows.out
        cdef Py_ssize_t start = out.size
        reserve(out, PyBytes_GET_SIZE(table.value_before) + 64)
        put_bytes(out, table.value_before)
        put_literal(out, text)
        return start

    @cython.final
    cdef bint _put_key(self, Table table, Span* span) except -1:
        """End the value, and write the key's columns from the image after it.

        Returns whether the record may be added: no column of the key is absent, and neither its
        size nor its key is for ``slow``.
        """
        cdef Out* out = &self.rows.out
        cdef Py_ssize_t start, size
        cdef int number
        cdef Extent extent
        span.key = out.size
        span.value_bytes = span.key - span.value
        span.key_bytes = NONE
        if table.key_width:
            reserve(out, PyBytes_GET_SIZE(table.key_before))
            put_bytes(out, table.key_before)
            start = out.size
            for number in range(table.key_width):
                extent = table.extents[table.key[number]]
                size = extent.end - extent.start
                if size == 0:
                    return False
                reserve(out, size + 64)
                memcpy(out.data + out.size, out.data + extent.start, size)
                out.data[out.size] = c","  # the row's first column has a brace instead
                out.size += size
            out.data[start] = c"{"
            put_literal(out, b"}")
            reserve(out, PyBytes_GET_SIZE(table.key_after))
            put_bytes(out, table.key_after)
            span.key_bytes = out.size - span.key
        if table.bytes_max and span.value_bytes + max(0, span.key_bytes) > table.bytes_max:
            return False
        if table.claimed and span.key_bytes > 0:
            key = PyBytes_FromStringAndSize(out.data + span.key, span.key_bytes)
            return key not in table.claimed
        return True

    @cython.final
    cdef inline int _add(self, Table table, Span* span) except -1:
        self.rows.add(table, span)
        self.made_records += 1
        self.made_bytes += max(0, span.value_bytes) + max(0, span.key_bytes)
        return 0


cdef inline Py_ssize_t message_end(
    const uint8_t* p, Py_ssize_t start, Py_ssize_t end
) noexcept nogil:
    """Return the end of the CopyData message at ``start``, or ``start`` if it is incomplete."""
    cdef Py_ssize_t length
    if end - start < 5 or p[start] != c"d":
        return start
    length = be32(p + start + 1)
    return start if length < 4 or length >= end - start else start + length + 1


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline bint has_time(const uint8_t* p) noexcept nogil:
    """Return whether µs since 2000 fit into 64 bits as µs since 1970."""
    return <int64_t>be64(p) <= INT64_MAX - POSTGRES_EPOCH_US


cdef Py_ssize_t tuple_of(
    const uint8_t* p, Py_ssize_t size, Py_ssize_t at, Cell* cells, int width
) noexcept nogil:
    """Cut a tuple into cells; return where it ends, or -1."""
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
    """Return where a tuple of any width ends, or -1: ``tuple_of`` without cells."""
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
    """Return whether an unread row message is valid: an error in it still counts."""
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


cdef bint cells_of(tuple row, Cell* cells, int width) except -1:
    """Return the cells of a decoded row (cdc.wal.messages.Row), which must outlive them."""
    cdef int number
    if len(row) != width:
        return False
    for number in range(width):
        value = row[number]
        if type(value) is bytes:
            cells[number].kind = c"t"
            cells[number].text = <const uint8_t*>PyBytes_AS_STRING(value)
            cells[number].size = PyBytes_GET_SIZE(value)
        else:
            cells[number].kind = c"n" if value is None else c"u"
    return True
