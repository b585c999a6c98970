"""PostgreSQL's texts of numbers, times, bytes and arrays → JSON, by the rules of json_text.pxi."""

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
    """Write digits in quotes, with a sign or a fraction if the text has them."""
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
    """Write the shortest digits of a number without an exponent, as Python does.

    Java writes the same from 0.001 up to seven digits before the point.
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
    """Write a number of up to 18 digits, ``scale`` of them its fraction, as base64 of its bytes."""
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
        put_three(out, three, left)


cdef inline void put_three(Out* out, uint32_t three, int count) noexcept nogil:
    """Write three bytes as four characters of base64; one or two bytes are padded."""
    put_byte(out, BASE64[three >> 18])
    put_byte(out, BASE64[(three >> 12) & 63])
    put_byte(out, BASE64[(three >> 6) & 63] if count > 1 else c"=")
    put_byte(out, BASE64[three & 63] if count > 2 else c"=")


cdef int DAYS_OF_MONTH[12]
cdef int DAYS_BEFORE_MONTH[12]
DAYS_OF_MONTH[:] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS_BEFORE_MONTH[:] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]


cdef inline int two(const uint8_t* p) noexcept nogil:
    """Return the number that two digits mean, or one that is too large for every caller."""
    if not (is_digit(p[0]) and is_digit(p[1])):
        return 1_000
    return (p[0] - 0x30) * 10 + p[1] - 0x30


cdef bint date_of(const uint8_t* p, int64_t* days) noexcept nogil:
    """Read ``2024-02-29`` as days since 1970, if it is a day of the years 1 to 9999."""
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
    put_signed(out, us // divisor)  # exact: rounding of negative numbers can't matter
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
    r"""Write ``\x`` and hexadecimal digits as base64."""
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
        put_three(out, three << (8 * (3 - count)), count)
    put_byte(out, c'"')
    return 1


cdef int put_array(
    Out* out, int kind, int digits, const uint8_t* p, Py_ssize_t size
) noexcept nogil:
    """Write an array of one dimension, with bounds from 1. Elements may have quotes and escapes."""
    cdef Py_ssize_t at = 1, start, end = size - 1
    if size < 2 or p[0] != c"{" or p[end] != c"}":
        return 0
    if size >= LONG and (kind == BOOL or kind == DECIMAL):
        return 0  # their elements take more than twice the reserved bytes
    put_byte(out, c"[")
    while at < end:
        start = at
        if p[at] == c'"':
            at = quoted_end(p, at + 1, end)
            if at == end or not put_quoted(out, kind, digits, p + start + 1, at - start - 1):
                return 0
            at += 1
        else:
            at = bare_end(p, at, end)
            if at - start == 4 and memcmp(p + start, b"NULL", 4) == 0:
                put_literal(out, b"null")
            elif at == start or not put_value(out, kind, digits, p + start, at - start):
                return 0
        if at < end:
            if p[at] != c"," or at + 1 == end:
                return 0
            put_byte(out, c",")
            at += 1
    put_byte(out, c"]")
    return 1


cdef inline Py_ssize_t bare_end(const uint8_t* p, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Find the next delimiter, or a byte that needs quotes."""
    while at < end and p[at] != c"," and p[at] != c'"' and p[at] != c"\\":
        if p[at] == c"{" or p[at] == c"}":
            break
        at += 1
    return at


cdef inline Py_ssize_t quoted_end(const uint8_t* p, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Find the closing quote, or ``end`` if there is none."""
    while at < end and p[at] != c'"':
        at += 2 if p[at] == c"\\" else 1
    return min(at, end)


cdef int put_quoted(
    Out* out, int kind, int digits, const uint8_t* p, Py_ssize_t size
) noexcept nogil:
    """Unescape an element that had quotes: the byte after a backslash means itself."""
    cdef Py_ssize_t at = 0
    cdef const uint8_t* escape = <const uint8_t*>memchr(p, c"\\", size)
    if escape == NULL:
        return put_value(out, kind, digits, p, size)
    if kind != TEXT:
        return 0
    put_byte(out, c'"')
    while escape != NULL:
        if not put_escaped(out, p + at, escape - p - at):
            return 0
        at = escape - p + 1
        escape = <const uint8_t*>memchr(p + at + 1, c"\\", size - at - 1)
    if not put_escaped(out, p + at, size - at):
        return 0
    put_byte(out, c'"')
    return 1
