"""Bytes → numbers and cells: no length is believed that goes beyond the message."""

cdef struct Cell:
    uint8_t kind
    const uint8_t* text
    Py_ssize_t size


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline bint has_time(const uint8_t* p) noexcept nogil:
    """Whether µs since 2000 are within 64 bits when counted since 1970, too."""
    return <int64_t>be64(p) <= INT64_MAX - POSTGRES_EPOCH_US


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


cdef bint cells_of(tuple row, Cell* cells, int width) except -1:
    """The cells of a decoded row (cdc.wal.messages.Row), which has to outlive them."""
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
