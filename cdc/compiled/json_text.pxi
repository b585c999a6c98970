"""PostgreSQL's texts → JSON in a growing buffer: the common forms of the common types.

Each ``put_…`` of a value returns 1. For a text that it doesn't know, it writes nothing and returns
0, and cdc/values converts the text.

The caller has reserved ``longest`` and LONGEST_FIXED bytes. Every form fits into them: a control
character takes six, a quote or a backslash two, any other byte of a text one. A comma or brace
after an array's element takes one byte of those for its quotes. Base64 takes fewer bytes than
hexadecimal digits. Every other form takes less than 64 bytes.

Texts are copied eight bytes at a time. A copy may write a few bytes past the end of its text, and
the reserved bytes include these.
"""

cdef enum:  # as in cdc.values.blocks.ValueKind, which describes each
    LEFT_OUT = -1
    OTHER
    TEXT
    INTEGER
    BOOL
    FLOAT
    NUMERIC_TEXT
    DATE
    TIMESTAMP_US
    TIMESTAMP_MS
    TIMESTAMPTZ
    BYTEA
    DECIMAL
    ARRAY = 16  # plus the elements' kind

cdef struct Out:
    char* data
    Py_ssize_t size
    Py_ssize_t room

cdef extern from *:
    """
    #define ONES 0x0101010101010101ULL
    #define HIGHS 0x8080808080808080ULL
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define LITTLE_ENDIAN_HERE 1
    #define lowest_byte(word) (__builtin_ctzll(word) >> 3)
    #else
    #define LITTLE_ENDIAN_HERE 0
    #define lowest_byte(word) 0
    #endif
    """
    uint64_t ONES
    uint64_t HIGHS
    int LITTLE_ENDIAN "LITTLE_ENDIAN_HERE"
    int lowest_byte(uint64_t word) nogil

cdef enum:
    LONGEST_FIXED = 64
    LONG = 65_536

cdef const char* HEX_DIGITS = b"0123456789abcdef"
cdef const char* BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef int reserve(Out* out, Py_ssize_t more) except -1:
    cdef char* data
    cdef Py_ssize_t room
    if out.room - out.size >= more:
        return 0
    room = max(2 * out.room, out.size + more, 4096)
    data = <char*>PyMem_Realloc(out.data, room)
    if data == NULL:
        raise MemoryError
    out.data, out.room = data, room
    return 0


cdef inline Py_ssize_t longest(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Return how many bytes a text may take, without LONGEST_FIXED."""
    return 6 * size if size < LONG else longest_of_long(p, size)


cdef Py_ssize_t longest_of_long(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Count its control characters: without a count, the result could be three times as much."""
    cdef Py_ssize_t at, controls = 0
    for at in range(size):
        controls += p[at] < 0x20
    return 2 * size + 5 * controls


cdef inline void put(Out* out, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(out.data + out.size, text, size)
    out.size += size


cdef inline void put_literal(Out* out, const char* text) noexcept nogil:
    put(out, text, strlen(text))  # strlen of a constant costs nothing


cdef inline void put_bytes(Out* out, bytes text) noexcept:
    put(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline void put_byte(Out* out, uint8_t byte) noexcept nogil:
    out.data[out.size] = byte
    out.size += 1


cdef void hexadecimal(char* at, uint64_t number, int digits) noexcept nogil:
    while digits:
        digits -= 1
        at[digits] = HEX_DIGITS[number & 15]
        number >>= 4


cdef int decimal(char* at, uint64_t number) noexcept nogil:
    cdef char digits[20]
    cdef int count = 20
    while True:
        count -= 1
        digits[count] = c"0" + <char>(number % 10)
        number //= 10
        if not number:
            break
    memcpy(at, digits + count, 20 - count)
    return 20 - count


cdef inline void put_number(Out* out, uint64_t number) noexcept nogil:
    out.size += decimal(out.data + out.size, number)


cdef inline void put_signed(Out* out, int64_t number) noexcept nogil:
    if number < 0:
        put_byte(out, c"-")
        put_number(out, 0 - <uint64_t>number)
    else:
        put_number(out, number)


cdef int put_value(
    Out* out, int kind, int digits, const uint8_t* p, Py_ssize_t size
) noexcept nogil:
    cdef Py_ssize_t start = out.size
    cdef int is_written = 0
    if kind == TEXT:
        is_written = put_text(out, p, size)
    elif kind == INTEGER:
        is_written = put_integer(out, p, size)
    elif kind == BOOL:
        is_written = put_bool(out, p, size)
    elif kind == TIMESTAMPTZ:
        is_written = put_timestamptz(out, p, size, digits)
    elif kind == NUMERIC_TEXT:
        is_written = put_numeric(out, p, size)
    elif kind == FLOAT:
        is_written = put_float(out, p, size, digits)
    elif kind == TIMESTAMP_US:
        is_written = put_timestamp(out, p, size, 1)
    elif kind == TIMESTAMP_MS:
        is_written = put_timestamp(out, p, size, 1_000)
    elif kind == DATE:
        is_written = put_date(out, p, size)
    elif kind == BYTEA:
        is_written = put_bytea(out, p, size)
    elif kind == DECIMAL:
        is_written = put_decimal(out, p, size, digits)
    elif kind > ARRAY:
        is_written = put_array(out, kind - ARRAY, digits, p, size)
    if not is_written:
        out.size = start
    return is_written


cdef inline uint64_t has_zero(uint64_t word) noexcept nogil:
    return (word - ONES) & ~word & HIGHS


cdef inline uint64_t special_of(uint64_t word) noexcept nogil:
    """Mark bytes that can't be copied. Bytes above the lowest marked one may be marked wrongly."""
    return (
        (word & HIGHS)
        | ((word - 0x20 * ONES) & ~word & HIGHS)
        | has_zero(word ^ (0x22 * ONES))
        | has_zero(word ^ (0x5C * ONES))
    )


cdef inline uint64_t last_bytes(const uint8_t* p, Py_ssize_t size, Py_ssize_t left) noexcept nogil:
    """Return the last ``left`` bytes of a text (fewer than eight), and zeros after them."""
    cdef uint64_t word = 0
    cdef uint32_t low, high
    if not LITTLE_ENDIAN:
        return 0
    if size >= 8:
        memcpy(&word, p + size - 8, 8)
        return word >> (64 - 8 * left)
    p += size - left
    if left >= 4:
        memcpy(&low, p, 4)
        memcpy(&high, p + left - 4, 4)
        return low | (<uint64_t>high << (8 * left - 32))
    return (
        p[0] | (<uint64_t>p[left >> 1] << (8 * (left >> 1))) | (<uint64_t>p[left - 1] << (8 * left - 8))
    )


cdef int put_text(Out* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    put_byte(out, c'"')
    if not put_escaped(out, p, size):
        return 0
    put_byte(out, c'"')
    return 1


cdef int put_escaped(Out* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Write UTF-8 with JSON's escapes, as json.encoder.encode_basestring does."""
    cdef Py_ssize_t at = 0, left, length
    cdef uint64_t word, special
    cdef uint8_t byte
    cdef char* to = out.data + out.size
    while at < size:
        left = size - at
        if left >= 8:
            memcpy(&word, p + at, 8)
            left = 8
        else:
            word = last_bytes(p, size, left)
        while True:
            memcpy(to, &word, 8)
            special = special_of(word)
            length = lowest_byte(special) if special else 8
            if length >= left:
                to += left
                at += left
                break
            to += length
            at += length
            byte = p[at]
            if byte != 0x22 and byte != 0x5C:
                length = put_rare(&to, p + at, size - at)
                if not length:
                    return 0
                at += length
                break
            to[0] = c"\\"
            to[1] = byte
            to += 2
            at += 1
            left -= length + 1
            if not left or not LITTLE_ENDIAN:
                break
            word >>= 8 * (length + 1)
    out.size = to - out.data
    return 1


cdef Py_ssize_t put_rare(char** to, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Write a character or an ASCII byte; return how many bytes it has, or 0 if it is wrong."""
    cdef uint8_t byte = p[0]
    cdef char* at = to[0]
    cdef int length
    if byte >= 0x80:
        length = character(p, size)
        memcpy(at, p, length)
        to[0] += length
        return length
    if byte >= 0x20:
        at[0] = byte
        to[0] += 1
        return 1
    at[0] = c"\\"
    to[0] += 2
    if byte == c"\n":
        at[1] = c"n"
    elif byte == c"\t":
        at[1] = c"t"
    elif byte == c"\r":
        at[1] = c"r"
    elif byte == c"\f":
        at[1] = c"f"
    elif byte == c"\b":
        at[1] = c"b"
    else:
        at[1] = c"u"
        hexadecimal(at + 2, byte, 4)
        to[0] += 4
    return 1


cdef int character(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Return the size of a character beyond ASCII, or 0 if it isn't UTF-8 (RFC 3629)."""
    cdef uint8_t first = p[0]
    if size < 2 or first < 0xC2 or first > 0xF4 or (p[1] & 0xC0) != 0x80:
        return 0
    if first < 0xE0:
        return 2
    if size < 3 or (p[2] & 0xC0) != 0x80:
        return 0
    if first < 0xF0:
        if (first == 0xE0 and p[1] < 0xA0) or (first == 0xED and p[1] > 0x9F):
            return 0
        return 3
    if size < 4 or (p[3] & 0xC0) != 0x80:
        return 0
    if (first == 0xF0 and p[1] < 0x90) or (first == 0xF4 and p[1] > 0x8F):
        return 0
    return 4
