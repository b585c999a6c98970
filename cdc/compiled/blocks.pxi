"""Messages between Stream Start and Stream Stop → the same as if their transaction weren't open.

Each says by an xid of its own which subtransaction it is of. Without that it is what it would be
in a transaction that is sent when it has ended, so whoever reads it then knows nothing of blocks.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

def plain_messages(data, Py_ssize_t start, Py_ssize_t end, xid, bint after_message):
    """Take the whole row, relation, type, truncate and logical messages from ``start`` on.

    ``xid`` is that of the last message before them that has one, if there was one. Returns where
    the first message stands that isn't one of these; all before it as whole CopyData messages
    without their xids; each xid that differs from the one before it, with the place in these from
    which on it holds, and whether a logical message is right in front of it; places and sizes of
    Relation messages; and whether the last one is a logical message. Of those nobody knows which
    subtransaction they are of: PostgreSQL (18 as well) gives them the xid of the whole transaction.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef Py_ssize_t length, size
    cdef uint64_t current = NO_XID if xid is None else <uint64_t>xid
    cdef uint8_t kind
    cdef Out out
    out.data, out.size, out.room = NULL, 0, 0
    switches, relations = [], []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError("a range outside of the buffer")
        p = <const uint8_t*>view.buf
        reserve(&out, end - start)
        while end - start >= 5 and p[start] == c"d":
            length = be32(p + start + 1)
            if length < 4 or length >= end - start:
                break
            kind = p[start + 30] if length >= 34 and p[start + 5] == c"w" else 0
            if not (kind == c"I" or kind == c"U" or kind == c"D" or kind == c"R" or kind == c"Y"
                    or kind == c"T" or kind == c"M"):
                break
            if kind != c"M" and be32(p + start + 31) != current:
                current = be32(p + start + 31)
                switches.append((current, out.size, bool(after_message)))
            after_message = kind == c"M"
            if kind == c"R":
                relations.append((out.size, length - 3))
            size = length - 34  # behind the xid
            out.data[out.size] = c"d"
            put_be32(<uint8_t*>out.data + out.size + 1, length - 4)
            memcpy(out.data + out.size + 5, p + start + 5, 26)
            memcpy(out.data + out.size + 31, p + start + 35, size)
            out.size += 31 + size
            start += length + 1
        plain = PyBytes_FromStringAndSize(out.data, out.size)
        return start, plain, switches, relations, bool(after_message)
    finally:
        PyBuffer_Release(&view)
        PyMem_Free(out.data)


cdef uint64_t NO_XID = <uint64_t>1 << 32  # that of no transaction


cdef inline void put_be32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0], p[1], p[2], p[3] = value >> 24, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
