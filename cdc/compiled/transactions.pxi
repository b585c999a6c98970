"""Where a stream stands: cdc.stream.transactions.Cursor, compiled."""

cdef enum:
    COMMITS_MAX = 16_384  # as cdc.stream.transactions.COMMITS_MAX


cdef class Cursor:
    """As cdc.stream.transactions.Cursor, which says what each member means."""

    cdef uint64_t epoch, commit_lsn, end, previous, last, last_published, index
    cdef uint64_t reached_lsn, reached_index, cut_lsn, cut_index
    cdef int64_t commit_ts_us, _cut_ts_us
    cdef uint32_t xid
    cdef bint inside, has_previous, has_last, has_any
    cdef object made  # the Transaction, once somebody has asked for it
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
        is_remembered = self.commit_xids[xid % COMMITS_MAX] == xid
        return Lsn(self.commit_lsns[xid % COMMITS_MAX] if is_remembered else 0)

    def came_from(self, origin):
        if not self.inside:
            raise CorruptMessageError("an origin outside of a transaction")
        self.origin, self.made = origin, None
        self.after_lsn = after_lsn(origin).encode()

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
    def position(self):
        if not self.inside:
            raise CorruptMessageError("a row outside of a transaction")
        return Position(self.epoch, Lsn(self.commit_lsn), self.index)

    @property
    def is_ended(self):
        return self.position <= self.cut

    def message_at(self, lsn):
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
