"""Begin, row and Commit messages → positions: each frame's transaction, and its place in it.

The cursor gives each frame of a transaction its position. It knows which frames the log already
has, so a start can continue in the middle of a transaction (docs/decisions/0002).

Between Stream Start and Stream Stop, each message has an xid of its subtransaction. Without that
xid, the message is the same as in a transaction that is sent after its end. So its readers don't
need to know of blocks.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

cpdef enum:
    COMMITS_MAX = 16_384  # how many transactions' commit LSNs are kept


@cython.final
cdef class Cursor:
    """The place in the stream: Begin, then frames, then Commit, repeatedly.

    ``reached`` is the last position handed out or already in the log. ``cut`` is the last one with
    no transaction open. ``flush_lsn`` is the end of the last whole transaction: it may be
    acknowledged once everything up to ``reached`` is durable. ``cut_ts_us`` is when the last whole
    transaction was committed (µs since 1970, UTC). ``latest`` is the open transaction, or the last
    one if none is open. ``last_commit`` is the commit LSN of the last whole one with frames (0:
    none yet).
    """

    cdef uint64_t epoch, commit_lsn, end, previous, last, last_published, index
    cdef uint64_t reached_lsn, reached_index, cut_lsn, cut_index
    cdef int64_t commit_ts_us, _cut_ts_us
    cdef uint32_t xid
    cdef bint inside, has_previous, has_last, has_any
    cdef object made  # the Transaction, once a caller needs it
    cdef object origin
    cdef bytes after_lsn
    cdef char header_start[26]  # "<epoch>.<commit LSN>." of the position header
    cdef uint32_t commit_xids[COMMITS_MAX]
    cdef uint64_t commit_lsns[COMMITS_MAX]

    def __init__(self, reached, cut, flush_lsn, cut_ts_us=0):
        self.epoch = reached.epoch
        self.reached_lsn, self.reached_index = reached.commit_lsn, reached.index
        self.cut_lsn, self.cut_index = cut.commit_lsn, cut.index
        self.end = flush_lsn
        self._cut_ts_us = cut_ts_us
        self.after_lsn = AFTER_LSN

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
    def last_commit(self):
        return Lsn(self.last_published)

    @property
    def transaction(self):
        return self.latest if self.inside else None

    @property
    def latest(self):
        if self.made is None and self.has_any:
            previous = Lsn(self.previous) if self.has_previous else None
            self.made = Transaction(
                self.xid, Lsn(self.commit_lsn), self.commit_ts_us, previous, self.origin
            )
        return self.made

    def begin(self, xid, commit_lsn, commit_ts_us):
        """Enter a transaction; raise CorruptMessageError inside another one."""
        if self.inside:
            raise CorruptMessageError("Begin inside of a transaction", where=f"LSN {commit_lsn}")
        self._begin(xid, commit_lsn, commit_ts_us)
        return self.transaction

    cdef void _begin(self, uint32_t xid, uint64_t commit_lsn, int64_t commit_ts_us) noexcept:
        self.xid, self.commit_lsn, self.commit_ts_us = xid, commit_lsn, commit_ts_us
        self.previous, self.has_previous = self.last, self.has_last
        self.inside = self.has_any = True
        self.made = self.origin = None
        self.after_lsn = AFTER_LSN
        self.index = 0
        self.commit_xids[xid % COMMITS_MAX] = xid
        self.commit_lsns[xid % COMMITS_MAX] = commit_lsn
        hexadecimal(self.header_start, self.epoch, 8)
        self.header_start[8] = c"."
        hexadecimal(self.header_start + 9, commit_lsn, 16)
        self.header_start[25] = c"."

    def committed_at(self, uint32_t xid):
        """Return a recent transaction's commit LSN by its 32-bit xid, or 0 if it is unknown."""
        is_remembered = self.commit_xids[xid % COMMITS_MAX] == xid
        return Lsn(self.commit_lsns[xid % COMMITS_MAX] if is_remembered else 0)

    def came_from(self, origin):
        """Note the origin of the open transaction, before its first row."""
        if not self.inside:
            raise CorruptMessageError("an origin outside of a transaction")
        self.origin, self.made = origin, None
        self.after_lsn = after_lsn(origin).encode()

    def next(self):
        """Return the position of the next frame, or None if the log already has it."""
        if not self.inside:
            raise CorruptMessageError("a row outside of a transaction")
        if not self._next():
            return None
        return Position(self.epoch, Lsn(self.commit_lsn), self.index)

    cdef inline bint _is_new(self) noexcept:
        """Return whether the log lacks the next frame."""
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
    def position(self):
        """Return the position of the open transaction's last frame, even if the log has it."""
        if not self.inside:
            raise CorruptMessageError("a row outside of a transaction")
        return Position(self.epoch, Lsn(self.commit_lsn), self.index)

    @property
    def is_ended(self):
        """Return whether the log has the open transaction, including the records of its end."""
        return self.position <= self.cut

    def message_at(self, lsn):
        """Return the position of a message outside transactions, or None if the log has it.

        It comes between two transactions. ``lsn`` is its end in the WAL. The commit of the
        transaction that wrote it may start there: index 0 is before that transaction's frames.
        """
        if self.inside:
            raise CorruptMessageError("a message inside of a transaction", where=f"LSN {lsn}")
        position = Position(self.epoch, lsn, 0)
        if position <= self.reached:
            return None
        self.reached_lsn, self.reached_index = lsn, 0
        if position > self.cut:
            self.cut_lsn, self.cut_index = lsn, 0
        return position

    def commit(self, commit_lsn, end_lsn):
        """Leave the transaction; raise CorruptMessageError if another one was begun."""
        if not self.inside or self.commit_lsn != <uint64_t>commit_lsn:
            raise CorruptMessageError("Commit of another transaction", where=f"LSN {commit_lsn}")
        transaction = self.transaction
        self._commit(end_lsn)
        return transaction

    cdef void _commit(self, uint64_t end_lsn) noexcept:
        cdef uint64_t lsn = self.commit_lsn
        self.inside = False
        self.last, self.has_last = lsn, True
        if self.index:
            self.last_published = lsn
        self._cut_ts_us = self.commit_ts_us
        # They can differ: a start in the middle of a transaction receives earlier ones again.
        if lsn > self.reached_lsn or (lsn == self.reached_lsn and self.index > self.reached_index):
            self.reached_lsn, self.reached_index = lsn, self.index
        if lsn > self.cut_lsn or (lsn == self.cut_lsn and self.index > self.cut_index):
            self.cut_lsn, self.cut_index = lsn, self.index
        self.end = max(self.end, end_lsn)

    def idle_at(self, wal_end):
        """Note a keepalive: everything committed before ``wal_end`` was received."""
        cdef uint64_t lsn = wal_end
        if self.inside or lsn <= self.end:
            return
        if lsn > self.reached_lsn:
            self.reached_lsn, self.reached_index = lsn, 0
        if lsn > self.cut_lsn:
            self.cut_lsn, self.cut_index = lsn, 0
        self.end = lsn


def plain_messages(data, Py_ssize_t start, Py_ssize_t end, xid, bint after_message, shortened):
    """Read the whole row, relation, type, truncate and logical messages from ``start``.

    ``xid`` is the last xid before them, if there was one. Returns:

    - where the first message of another kind begins
    - all messages before it, as whole CopyData messages without their xids
    - each xid that differs from the one before, with the place from which it holds, and whether a
      logical message is right before that place
    - places and sizes of Relation messages
    - whether the last message is a logical one

    The subtransaction of a logical message is unknown: PostgreSQL (also 18) sends the xid of the
    whole transaction with it. ``shortened`` gets its CopyData payload. It returns None, or a
    payload that replaces it and isn't longer.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* payload
    cdef Py_ssize_t stop, length, size
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
        while True:
            stop = message_end(p, start, end)
            length = stop - start - 1
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
            payload, size = p + start + 5, length - 4
            if kind == c"M" and shortened is not None:
                left = shortened(PyBytes_FromStringAndSize(<const char*>payload, size), size)
                if left is not None and 30 <= len(left) <= size:
                    payload, size = <const uint8_t*>PyBytes_AS_STRING(left), len(left)
            out.data[out.size] = c"d"
            put_be32(<uint8_t*>out.data + out.size + 1, size)
            memcpy(out.data + out.size + 5, payload, 26)
            memcpy(out.data + out.size + 31, payload + 30, size - 30)  # after the xid
            out.size += 1 + size
            start = stop
        plain = PyBytes_FromStringAndSize(out.data, out.size)
        return start, plain, switches, relations, bool(after_message)
    finally:
        PyBuffer_Release(&view)
        PyMem_Free(out.data)


cdef uint64_t NO_XID = <uint64_t>1 << 32  # no transaction has it


cdef inline void put_be32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0], p[1], p[2], p[3] = value >> 24, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
