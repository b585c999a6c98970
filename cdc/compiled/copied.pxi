"""Lines of COPY's text format → records, for snapshots/copied_rows.py, which reads the others.

Every record has the same bytes except for the row. ``source`` is the text between the row and the
time at which the record was made. ``position`` is the header.
"""

@cython.final
cdef class Copier(Writing):
    """``key``: indexes of the columns that ``stale`` refers to; ``extra``: see Copied.

    Without ``table``, ``slow`` reads every line.
    """

    cdef Table table
    cdef bytes source, position
    cdef tuple key
    cdef int extra
    cdef Out scratch  # the line's unescaped texts
    cdef public object stale
    """Keys whose rows are left out."""
    cdef readonly Py_ssize_t row_count
    """Number of rows read."""

    def __cinit__(self, list records, slow, Table table, bytes source, bytes position, key, extra):
        self.records, self.slow, self.table = records, slow, table
        self.source, self.position = source, position
        self.key, self.extra = key, extra
        if table is not None and not all(0 <= index < table.width for index in key):
            raise ValueError("a key that the table doesn't have")
        if extra < 0:
            raise ValueError("fewer columns than the table has")
        self.stale = ()

    def __dealloc__(self):
        PyMem_Free(self.scratch.data)

    cdef int _frame(self, const uint8_t* p, Py_ssize_t size) except -1:
        if self.table is None or not self._cut(p, size):
            return self._count_row(0)
        if self.stale and self._is_stale():
            return self._count_row(1)
        if self.rows is None:
            self._open_rows()
        if not self._read():
            self.rows.out.size = self.rows.end
            return self._count_row(0)
        return self._count_row(1)

    cdef inline int _count_row(self, int is_written) noexcept:
        self.row_count += 1
        return is_written

    cdef int _cut(self, const uint8_t* p, Py_ssize_t size) except -1:
        """Cut a line into the table's cells; 0 unless the line is whole and all fit."""
        cdef Cell* cells = self.table.cells
        cdef const uint8_t* tab
        cdef Py_ssize_t at = 0, stop
        cdef int number, width = self.table.width, last = width + self.extra - 1
        cdef bint escaped
        if size < 1 or p[size - 1] != c"\n":
            return 0
        size -= 1
        if last < 0:
            return size == 0
        escaped = memchr(p, c"\\", size) != NULL
        if escaped:
            self.scratch.size = 0
            reserve(&self.scratch, size)  # before cells point into it
        for number in range(last + 1):
            tab = <const uint8_t*>memchr(p + at, c"\t", size - at)
            if (tab == NULL) != (number == last):
                return 0
            stop = size if tab == NULL else tab - p
            if number < width:
                cells[number].kind = c"t"
                cells[number].text = p + at
                cells[number].size = stop - at
                if escaped:
                    unescape(&cells[number], &self.scratch)
            at = stop + 1
        return 1

    cdef bint _is_stale(self) except -1:
        """Return whether ``stale`` has the row's key."""
        cdef Cell* cell
        cdef list texts = []
        for index in self.key:
            cell = &self.table.cells[<int>index]
            if cell.kind != c"t":
                return False
            texts.append(PyBytes_FromStringAndSize(<const char*>cell.text, cell.size))
        return (texts[0] if len(texts) == 1 else b"\0".join(texts)) in self.stale

    cdef int _read(self) except -1:
        """Add the record of the row in the cells."""
        cdef Table table = self.table
        cdef Out* out = &self.rows.out
        cdef Span span
        span.value = self._put_start(table, b'{"before":null,"after":')
        if not self._image(table, table.cells, table.extents, False):
            return 0
        reserve(
            out,
            PyBytes_GET_SIZE(self.source) + PyBytes_GET_SIZE(table.value_after) + self.clock_bytes,
        )
        put_bytes(out, self.source)
        put(out, self.clock, self.clock_bytes)
        put_bytes(out, table.value_after)
        if not self._put_key(table, &span):
            return 0
        span.header_bytes = PyBytes_GET_SIZE(self.position)
        reserve(out, span.header_bytes)
        put_bytes(out, self.position)
        self._add(table, &span)
        return 1


cdef void unescape(Cell* cell, Out* scratch) noexcept nogil:
    """Unescape a field into ``scratch``, which has room for it."""
    cdef const uint8_t* p = cell.text
    cdef const uint8_t* end = p + cell.size
    cdef const uint8_t* escape = <const uint8_t*>memchr(p, c"\\", cell.size)
    if escape == NULL:
        return
    if cell.size == 2 and p[0] == c"\\" and p[1] == c"N":
        cell.kind = c"n"
        return
    cell.text = <const uint8_t*>scratch.data + scratch.size
    while escape != NULL and escape + 1 < end:
        put(scratch, <const char*>p, escape - p)
        put_byte(scratch, meaning(escape[1]))
        p = escape + 2
        escape = <const uint8_t*>memchr(p, c"\\", end - p)
    put(scratch, <const char*>p, end - p)
    cell.size = <const uint8_t*>scratch.data + scratch.size - cell.text


cdef inline uint8_t meaning(uint8_t byte) noexcept nogil:
    """Return the byte that a backslash and this letter mean: see snapshots.copied_rows."""
    if byte == c"n":
        return c"\n"
    if byte == c"t":
        return c"\t"
    if byte == c"r":
        return c"\r"
    if byte == c"b":
        return c"\b"
    if byte == c"f":
        return c"\f"
    if byte == c"v":
        return 0x0B
    return byte


def last_copy_data(data, Py_ssize_t start, Py_ssize_t end):
    """Return the start and end of the last whole message, reading CopyData messages from ``start``.

    Both are ``start`` if there is no whole message.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef Py_ssize_t stop, last = start
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError("a range outside of the buffer")
        p = <const uint8_t*>view.buf
        while True:
            stop = message_end(p, start, end)
            if stop == start:
                break
            last, start = start, stop
        return last, start
    finally:
        PyBuffer_Release(&view)
