"""A table's constants for the compiled way: the bytes around values and of absent ones."""

cdef struct Column:
    int kind
    int digits
    const char* name  # ,"name":
    Py_ssize_t name_bytes
    const char* null  # the bytes for NULL, with its name; likewise the next two
    Py_ssize_t null_bytes
    const char* absent
    Py_ssize_t absent_bytes
    const char* unsent
    Py_ssize_t unsent_bytes


cdef enum:
    KEYS_MAX = 200_000  # of one transaction; with more, their keys are unknown

cdef struct Cell:  # a column's text, from a message or a line of COPY
    uint8_t kind
    const uint8_t* text
    Py_ssize_t size


cdef struct Extent:  # of a column and its name in the output
    Py_ssize_t start
    Py_ssize_t end


@cython.final
cdef class Table:
    """The bytes around values, and a table's other constants, as the extension uses them.

    ``columns`` has for each column: its kind (cdc.values.blocks.ValueKind), the number of digits,
    ``,"name":``, the bytes for NULL, for an absent value and for a value that an old key lacks, and
    two functions: text → value, and value → JSON. A column with a negative kind isn't in events.

    ``flags``: whether tombstones follow deletes, whether unchanged values are read again, whether
    records have their position as a header after ``headers``, and whether a changed key adds
    headers. Only ``slow`` writes those.
    ``source``: the source block's text before ``ts_ms``, then up to ``sequence``, then up to
    ``txId``.
    ``around``: the bytes before and after a value, and before and after a key.
    """

    cdef object topic, keep
    cdef list functions
    cdef tuple headers
    cdef Column* columns
    cdef Cell* cells
    cdef Cell* olds
    cdef Extent* extents
    cdef Extent* old_extents
    cdef int* key
    cdef int width, key_width
    cdef Py_ssize_t fixed_bytes
    """Maximum size of a row without its texts."""
    cdef bint tombstones, positions, key_headers
    cdef public bint reselects
    cdef public Py_ssize_t bytes_max
    """A record with more bytes in key and value is for ``slow``; 0: no limit."""
    cdef public dict claimed
    """Keys whose records are for ``slow`` at any size."""
    cdef bytes head, middle, tail, version
    cdef bytes value_before, value_after, key_before, key_after
    cdef Out before_lsn, between  # the transaction's texts, cut at a row's own LSN
    cdef uint64_t entered
    cdef object watch
    cdef list changed_keys
    cdef int* identity
    cdef int identity_width

    def __cinit__(
        self, topic, columns, key, source, flags, version, around=(b"", b"", b"", b""), headers=()
    ):
        cdef int number
        if len(version) > VERSION_BYTES_MAX or not all(0 <= index < len(columns) for index in key):
            raise ValueError("a version or a key that no table has")
        self.topic, self.version = topic, version
        self.tombstones, self.reselects, self.positions, self.key_headers = flags
        self.value_before, self.value_after, self.key_before, self.key_after = around
        self.headers = headers
        self.head, self.middle, self.tail = source
        columns = [(*column[:2], column[2] + bytes(NAME_BYTES), *column[3:]) for column in columns]
        self.keep = [column[2:6] for column in columns]
        self.functions = [column[6:] for column in columns]
        self.width, self.key_width = len(columns), len(key)
        self.columns = <Column*>PyMem_Malloc(max(1, self.width) * sizeof(Column))
        self.cells = <Cell*>PyMem_Malloc(max(1, self.width) * sizeof(Cell))
        self.olds = <Cell*>PyMem_Malloc(max(1, self.width) * sizeof(Cell))
        self.extents = <Extent*>PyMem_Malloc(max(1, self.width) * sizeof(Extent))
        self.old_extents = <Extent*>PyMem_Malloc(max(1, self.width) * sizeof(Extent))
        self.key = <int*>PyMem_Malloc(max(1, self.key_width) * sizeof(int))
        if not (self.columns and self.cells and self.olds and self.key):
            raise MemoryError
        if not (self.extents and self.old_extents):
            raise MemoryError
        self.fixed_bytes = 0
        for number, index in enumerate(key):
            self.key[number] = index
        for number, column in enumerate(columns):
            self.columns[number].kind, self.columns[number].digits = column[0], column[1]
            if not 0 <= column[1] <= DIGITS_MAX.get(column[0] % ARRAY, column[1]):
                self.columns[number].kind = OTHER
            text(column[2], &self.columns[number].name, &self.columns[number].name_bytes)
            self.columns[number].name_bytes -= NAME_BYTES
            text(column[3], &self.columns[number].null, &self.columns[number].null_bytes)
            text(column[4], &self.columns[number].absent, &self.columns[number].absent_bytes)
            text(column[5], &self.columns[number].unsent, &self.columns[number].unsent_bytes)
            self.fixed_bytes += LONGEST_FIXED + NAME_BYTES + max(map(len, column[2:6]))

    def __dealloc__(self):
        PyMem_Free(self.columns)
        PyMem_Free(self.cells)
        PyMem_Free(self.olds)
        PyMem_Free(self.extents)
        PyMem_Free(self.old_extents)
        PyMem_Free(self.key)
        PyMem_Free(self.identity)
        PyMem_Free(self.before_lsn.data)
        PyMem_Free(self.between.data)

    def track_changes(self, identity, watch):
        """Append the key of each changed row to the list that ``watch(xid)`` returns.

        A key is the texts of the columns at ``identity``, joined by NUL, or None if it is unknown.
        """
        cdef int number
        if not identity or not all(0 <= index < self.width for index in identity):
            raise ValueError("a key that no table has")
        PyMem_Free(self.identity)
        self.identity_width = len(identity)
        self.identity = <int*>PyMem_Malloc(self.identity_width * sizeof(int))
        if self.identity == NULL:
            raise MemoryError
        for number, index in enumerate(identity):
            self.identity[number] = index
        self.watch = watch

    cdef inline int note(self, Cell* cells) except -1:
        """Note the key of a changed row, if the transaction is watched."""
        return 0 if self.changed_keys is None else self._note(cells)

    cdef int _note(self, Cell* cells) except -1:
        cdef Py_ssize_t size = self.identity_width - 1
        cdef Cell* cell
        cdef char* at
        cdef int number
        if PyList_GET_SIZE(self.changed_keys) >= KEYS_MAX:
            del self.changed_keys[:]
            self.changed_keys.append(None)
        for number in range(self.identity_width):
            cell = &cells[self.identity[number]]
            if cell.kind != c"t":
                self.changed_keys.append(None)
                return 0
            size += cell.size
        key = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(key)
        for number in range(self.identity_width):
            cell = &cells[self.identity[number]]
            if number:
                at[0] = 0
                at += 1
            memcpy(at, cell.text, cell.size)
            at += cell.size
        self.changed_keys.append(key)
        return 0

    cdef int enter(self, Cursor cursor, uint64_t serial) except -1:
        """Write the bytes that all rows of the transaction share: see convert.compiled_table."""
        cdef int64_t us = cursor.commit_ts_us
        cdef Out* out = &self.before_lsn
        self.entered = serial
        if self.watch is not None:
            self.changed_keys = self.watch(cursor.xid)
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


cdef inline void put_name(Out* out, Column* column) noexcept nogil:
    """Copy a name. Both buffers have room after the name."""
    if column.name_bytes <= NAME_BYTES:
        memcpy(out.data + out.size, column.name, NAME_BYTES)
        out.size += column.name_bytes
    else:
        put(out, column.name, column.name_bytes)
