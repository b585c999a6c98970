"""PostgreSQL's texts → JSON in a growing buffer: the common forms of the common types.

Each ``put_…`` of a value returns 1, or 0 for a text that it doesn't know, with nothing written:
then cdc/values decides. The caller has reserved ``longest`` and LONGEST_FIXED bytes, which every form
fits into: a control character takes six, a quote or backslash two, anything else of a text one; an array's
bare element has a comma or brace behind it, and takes its quotes and one of those; base64 takes
fewer than hexadecimal digits; and what else has a length of its own takes less than 64.
Texts are copied eight bytes at a time, so a few behind them may be written, for which there is room.
"""

cdef enum:  # cdc.values.codec.Kind, which says what each one is
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
    TEXT_ARRAY
    INTEGER_ARRAY
    DECIMAL

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
    """How many bytes a text may take, beside LONGEST_FIXED."""
    return 6 * size if size < 65_536 else longest_of_long(p, size)


cdef Py_ssize_t longest_of_long(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Its control characters are counted, because of which it could be three times as much."""
    cdef Py_ssize_t at, controls = 0
    for at in range(size):
        controls += p[at] < 0x20
    return 2 * size + 5 * controls


cdef inline void put(Out* out, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(out.data + out.size, text, size)
    out.size += size


cdef inline void put_literal(Out* out, const char* text) noexcept nogil:
    put(out, text, strlen(text))  # a constant to the compiler


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
    cdef int known = 0
    if kind == TEXT:
        known = put_text(out, p, size)
    elif kind == INTEGER:
        known = put_integer(out, p, size)
    elif kind == BOOL:
        known = put_bool(out, p, size)
    elif kind == TIMESTAMPTZ:
        known = put_timestamptz(out, p, size, digits)
    elif kind == NUMERIC_TEXT:
        known = put_numeric(out, p, size)
    elif kind == FLOAT:
        known = put_float(out, p, size, digits)
    elif kind == TIMESTAMP_US:
        known = put_timestamp(out, p, size, 1)
    elif kind == TIMESTAMP_MS:
        known = put_timestamp(out, p, size, 1_000)
    elif kind == DATE:
        known = put_date(out, p, size)
    elif kind == BYTEA:
        known = put_bytea(out, p, size)
    elif kind == DECIMAL:
        known = put_decimal(out, p, size, digits)
    elif kind == TEXT_ARRAY or kind == INTEGER_ARRAY:
        known = put_array(out, p, size, kind == TEXT_ARRAY)
    if not known:
        out.size = start
    return known


cdef inline uint64_t has_zero(uint64_t word) noexcept nogil:
    return (word - ONES) & ~word & HIGHS


cdef inline uint64_t special_of(uint64_t word) noexcept nogil:
    """Marks bytes that can't be copied; above the lowest one others may be marked, too."""
    return (
        (word & HIGHS)
        | ((word - 0x20 * ONES) & ~word & HIGHS)
        | has_zero(word ^ (0x22 * ONES))
        | has_zero(word ^ (0x5C * ONES))
    )


cdef inline uint64_t last_bytes(const uint8_t* p, Py_ssize_t size, Py_ssize_t left) noexcept nogil:
    """The ``left`` bytes, fewer than eight, that end a text, and zeros behind them."""
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
    """UTF-8 with JSON's escapes, as json.encoder.encode_basestring writes them."""
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
    """A character that isn't ASCII, or a byte that needs no look elsewhere; how long, 0: wrong."""
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
    """How long a character beyond ASCII is; 0 if it isn't UTF-8 (RFC 3629)."""
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


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return 0x30 <= byte <= 0x39


cdef inline Py_ssize_t digits_from(const uint8_t* p, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    while size - at >= 8:
        memcpy(&word, p + at, 8)
        if ((word & (0xF0 * ONES)) | (((word + 0x06 * ONES) & (0xF0 * ONES)) >> 4)) != 0x33 * ONES:
            break
        at += 8
    while at < size and is_digit(p[at]):
        at += 1
    return at


cdef int put_integer(Out* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t start = 1 if size and p[0] == c"-" else 0
    if size == start or size - start > 19 or digits_from(p, start, size) != size:
        return 0
    if p[start] == c"0" and size != 1:
        return 0
    put(out, <const char*>p, size)
    return 1


cdef int put_bool(Out* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    if size != 1:
        return 0
    if p[0] == c"t":
        put_literal(out, b"true")
        return 1
    if p[0] == c"f":
        put_literal(out, b"false")
        return 1
    return 0


cdef int put_numeric(Out* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Digits, maybe a sign, maybe a fraction; in quotes."""
    cdef Py_ssize_t start = 1 if size and p[0] == c"-" else 0
    cdef Py_ssize_t at = digits_from(p, start, size)
    if at == start:
        return 0
    if at < size:
        if p[at] != c"." or at + 1 == size or digits_from(p, at + 1, size) != size:
            return 0
    put_byte(out, c'"')
    put(out, <const char*>p, size)
    put_byte(out, c'"')
    return 1


cdef int put_float(Out* out, const uint8_t* p, Py_ssize_t size, bint java) noexcept nogil:
    """The shortest digits of a number without an exponent, which are Python's, too.

    Java's are those from 0.001 up to seven digits in front of the point.
    """
    cdef Py_ssize_t start = 1 if size and p[0] == c"-" else 0
    cdef Py_ssize_t point = digits_from(p, start, size), zeros
    if point == start or point - start > (7 if java else 15) or (p[start] == c"0" and point - start > 1):
        return 0
    if point == size:
        put(out, <const char*>p, size)
        put_literal(out, b".0")
        return 1
    if p[point] != c"." or size - start > 22 or p[size - 1] == c"0":
        return 0
    if point + 1 == size or digits_from(p, point + 1, size) != size:
        return 0
    if p[start] == c"0":
        zeros = point + 1
        while p[zeros] == c"0":
            zeros += 1
        if zeros - point > (3 if java else 4) or size - zeros > 17:
            return 0
    elif size - start > 18:
        return 0
    put(out, <const char*>p, size)
    return 1


cdef int put_decimal(Out* out, const uint8_t* p, Py_ssize_t size, int scale) noexcept nogil:
    """A number of up to 18 digits, so many of them behind the point → its bytes in base64."""
    cdef Py_ssize_t start = 1 if size and p[0] == c"-" else 0
    cdef Py_ssize_t point = digits_from(p, start, size), at
    cdef Py_ssize_t end = point + scale + 1 if scale else point
    cdef int64_t number = 0
    cdef uint8_t unscaled[8]
    cdef int first = 0
    if point == start or end != size or end - start > 18 + (scale > 0):
        return 0
    if scale and (p[point] != c"." or digits_from(p, point + 1, size) != size):
        return 0
    for at in range(start, size):
        if at != point:
            number = 10 * number + p[at] - 0x30
    if start:
        number = -number
    for at in range(8):
        unscaled[at] = <uint8_t>(<uint64_t>number >> (56 - 8 * at))
    while first < 7 and (
        (unscaled[first] == 0 and unscaled[first + 1] < 0x80)
        or (unscaled[first] == 0xFF and unscaled[first + 1] >= 0x80)
    ):
        first += 1
    put_byte(out, c'"')
    put_base64(out, unscaled + first, 8 - first)
    put_byte(out, c'"')
    return 1


cdef void put_base64(Out* out, const uint8_t* p, int size) noexcept nogil:
    cdef int at, left
    cdef uint32_t three
    for at in range(0, size, 3):
        left = size - at
        three = <uint32_t>p[at] << 16
        if left > 1:
            three |= <uint32_t>p[at + 1] << 8
        if left > 2:
            three |= p[at + 2]
        put_byte(out, BASE64[three >> 18])
        put_byte(out, BASE64[(three >> 12) & 63])
        put_byte(out, BASE64[(three >> 6) & 63] if left > 1 else c"=")
        put_byte(out, BASE64[three & 63] if left > 2 else c"=")


cdef int DAYS_OF_MONTH[12]
cdef int DAYS_BEFORE_MONTH[12]
DAYS_OF_MONTH[:] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS_BEFORE_MONTH[:] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]


cdef inline int two(const uint8_t* p) noexcept nogil:
    """Two digits, or a number that is too large for everything."""
    if not (is_digit(p[0]) and is_digit(p[1])):
        return 1_000
    return (p[0] - 0x30) * 10 + p[1] - 0x30


cdef bint date_of(const uint8_t* p, int64_t* days) noexcept nogil:
    """``2024-02-29`` → days since 1970, if there is such a day in the years 1 to 9999."""
    cdef int century = two(p), rest = two(p + 2), month = two(p + 5), day = two(p + 8)
    cdef int year = 100 * century + rest, before
    cdef bint leap
    if century > 99 or rest > 99 or p[4] != c"-" or p[7] != c"-" or year < 1:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month < 1 or month > 12 or day < 1:
        return False
    if day > DAYS_OF_MONTH[month - 1] + (1 if leap and month == 2 else 0):
        return False
    before = year - 1 if month <= 2 else year
    days[0] = (
        <int64_t>year * 365 + before // 4 - before // 100 + before // 400
        + DAYS_BEFORE_MONTH[month - 1] + day - 719_528
    )
    return True


cdef bint clock_of(const uint8_t* p, int64_t* seconds) noexcept nogil:
    cdef int hour = two(p), minute = two(p + 3), second = two(p + 6)
    if hour > 23 or minute > 59 or second > 59 or p[2] != c":" or p[5] != c":":
        return False
    seconds[0] = hour * 3_600 + minute * 60 + second
    return True


cdef int put_date(Out* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef int64_t days
    if size != 10 or not date_of(p, &days):
        return 0
    put_signed(out, days)
    return 1


cdef int put_timestamp(
    Out* out, const uint8_t* p, Py_ssize_t size, int64_t divisor
) noexcept nogil:
    cdef int64_t days, seconds, us = 0
    cdef Py_ssize_t at
    if size < 19 or not date_of(p, &days) or p[10] != c" " or not clock_of(p + 11, &seconds):
        return 0
    if size > 19:
        if size == 20 or size > 26 or p[19] != c"." or digits_from(p, 20, size) != size:
            return 0
        for at in range(20, 26):
            us = us * 10 + (p[at] - 0x30 if at < size else 0)
    us += (days * 86_400 + seconds) * 1_000_000
    if us % divisor:
        return 0
    put_signed(out, us // divisor)  # exact, so the sign makes no difference
    return 1


cdef int put_timestamptz(
    Out* out, const uint8_t* p, Py_ssize_t size, int digits
) noexcept nogil:
    cdef int64_t days, seconds
    cdef Py_ssize_t end = size - 3, fraction, at
    cdef char* to
    if size < 22 or not date_of(p, &days) or p[10] != c" " or not clock_of(p + 11, &seconds):
        return 0
    if p[end] != c"+" or p[end + 1] != c"0" or p[end + 2] != c"0":
        return 0
    fraction = end - 20
    if end > 19:
        if p[19] != c"." or fraction < 1 or fraction > 6 or digits_from(p, 20, end) != end:
            return 0
    else:
        fraction = 0
    to = out.data + out.size
    to[0] = c'"'
    memcpy(to + 1, p, 10)
    to[11] = c"T"
    memcpy(to + 12, p + 11, 8)
    to += 20
    if fraction or digits:
        to[0] = c"."
        for at in range(fraction):
            to[at + 1] = p[20 + at]
        for at in range(fraction, digits):
            to[at + 1] = c"0"
        to += 1 + max(fraction, digits)
    memcpy(to, b'Z"', 2)
    out.size = to + 2 - out.data
    return 1


cdef inline int nibble(uint8_t byte) noexcept nogil:
    if is_digit(byte):
        return byte - 0x30
    if 0x61 <= byte <= 0x66:
        return byte - 0x57
    return 256


cdef int put_bytea(Out* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    r"""``\x`` and hexadecimal digits → base64."""
    cdef Py_ssize_t at = 2
    cdef int count, value
    cdef uint32_t three
    if size < 2 or p[0] != c"\\" or p[1] != c"x" or size % 2:
        return 0
    put_byte(out, c'"')
    while at < size:
        three, count = 0, 0
        while count < 3 and at < size:
            value = (nibble(p[at]) << 4) | nibble(p[at + 1])
            if value > 255:
                return 0
            three = (three << 8) | <uint32_t>value
            at += 2
            count += 1
        three <<= 8 * (3 - count)
        put_byte(out, BASE64[three >> 18])
        put_byte(out, BASE64[(three >> 12) & 63])
        put_byte(out, BASE64[(three >> 6) & 63] if count > 1 else c"=")
        put_byte(out, BASE64[three & 63] if count > 2 else c"=")
    put_byte(out, c'"')
    return 1


cdef int put_array(Out* out, const uint8_t* p, Py_ssize_t size, bint texts) noexcept nogil:
    """One dimension, bounds from 1 on; elements bare or, of texts, in quotes without escapes."""
    cdef Py_ssize_t at = 1, start, element
    cdef Out* o = out
    if size < 2 or p[0] != c"{" or p[size - 1] != c"}":
        return 0
    put_byte(o, c"[")
    while at < size - 1:
        start = at
        if p[at] == c'"':
            if not texts:
                return 0
            at += 1
            while at < size - 1 and p[at] != c'"':
                if p[at] == c"\\":
                    return 0
                at += 1
            if at == size - 1 or not put_text(o, p + start + 1, at - start - 1):
                return 0
            at += 1
        else:
            while at < size - 1 and p[at] != c",":
                if p[at] == c'"' or p[at] == c"{" or p[at] == c"}" or p[at] == c"\\":
                    return 0
                at += 1
            element = at - start
            if element == 4 and memcmp(p + start, b"NULL", 4) == 0:
                put_literal(o, b"null")
            elif element == 0:
                return 0
            elif texts:
                if not put_text(o, p + start, element):
                    return 0
            elif not put_integer(o, p + start, element):
                return 0
        if at < size - 1:
            if p[at] != c"," or at + 1 == size - 1:
                return 0
            put_byte(o, c",")
            at += 1
    put_byte(o, c"]")
    return 1
