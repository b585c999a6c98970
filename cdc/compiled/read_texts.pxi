"""PostgreSQL's text of a value → a number or bytes, by the kind that its column is read as."""

cdef enum:
    # The kind that a column's text is read as: compaction/verify/rules.py.
    TEXT = 0
    INTEGER = 1
    BOOLEAN = 2
    FLOAT = 3
    DOUBLE = 4
    DECIMAL = 5
    NUMBER = 6
    DATE = 7
    TIMESTAMP = 8
    TIME = 9
    BYTES = 10
    CONVERTED = 11
    NOTHING = 12
    ARRAY = 16  # plus the elements' kind

cdef enum:
    # What a text is read as if it isn't a value of its kind.
    ANOTHER = 0  # the text isn't of its kind
    READ = 1
    NESTED = 2  # an array of several dimensions, or with bounds

cdef int64_t DAY_US = 86_400_000_000


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return c"0" <= byte <= c"9"


cdef bint read_digits(const uint8_t* p, int count, int64_t* number) noexcept nogil:
    cdef int at
    number[0] = 0
    for at in range(count):
        if not is_digit(p[at]):
            return False
        number[0] = number[0] * 10 + (p[at] - c"0")
    return True


cdef bint read_integer(const uint8_t* p, Py_ssize_t size, int64_t* number) noexcept nogil:
    cdef bint negative = size > 1 and p[0] == c"-"
    cdef uint64_t value = 0
    cdef Py_ssize_t at = 1 if negative else 0
    if not 0 < size - at <= 19:
        return False
    while at < size:
        if not is_digit(p[at]):
            return False
        value = value * 10 + (p[at] - c"0")
        at += 1
    if value > (<uint64_t>1 << 63) - (0 if negative else 1):
        return False
    number[0] = <int64_t>(0 - value) if negative else <int64_t>value
    return True


cdef bint read_decimal(const uint8_t* p, Py_ssize_t size, int scale, int64_t* number) noexcept nogil:
    """Read a number's digits without its point, at most 18, ``scale`` of them after the point."""
    cdef bint negative = size > 1 and p[0] == c"-"
    cdef Py_ssize_t at = 1 if negative else 0
    cdef int64_t value = 0
    cdef int behind = -1, digits = 0
    while at < size:
        if p[at] == c"." and behind < 0:
            behind = 0
        elif not is_digit(p[at]):
            return False
        elif behind >= scale:
            if p[at] != c"0":
                return False
        else:
            value = value * 10 + (p[at] - c"0")
            digits += value != 0
            behind += behind >= 0
            if digits > 18:
                return False
        at += 1
    behind = max(behind, 0)
    while behind < scale:
        value *= 10
        digits += value != 0
        behind += 1
    number[0] = -value if negative else value
    return digits <= 18 and size > 0 and is_digit(p[size - 1])


cdef int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Count days since 1970-01-01 in the proleptic Gregorian calendar, for years from 1."""
    cdef int64_t of_march, era, of_era, of_year
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_march = (month + 9) % 12
    of_year = (153 * of_march + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


cdef bint read_date(const uint8_t* p, Py_ssize_t size, int64_t* days) noexcept nogil:
    cdef int64_t year, month, day
    if size != 10 or p[4] != c"-" or p[7] != c"-":
        return False
    if not (read_digits(p, 4, &year) and read_digits(p + 5, 2, &month)):
        return False
    if not read_digits(p + 8, 2, &day) or year < 1:
        return False
    days[0] = days_of(year, month, day)
    return True


cdef bint read_time(const uint8_t* p, Py_ssize_t size, int64_t* us) noexcept nogil:
    cdef int64_t hour, minute, second, fraction = 0
    cdef Py_ssize_t behind
    if size < 8 or p[2] != c":" or p[5] != c":":
        return False
    if not (read_digits(p, 2, &hour) and read_digits(p + 3, 2, &minute)):
        return False
    if not read_digits(p + 6, 2, &second):
        return False
    if size > 8:
        behind = size - 9
        if p[8] != c"." or not 0 < behind <= 6 or not read_digits(p + 9, behind, &fraction):
            return False
        while behind < 6:
            fraction *= 10
            behind += 1
    us[0] = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return True


cdef bint read_timestamp(const uint8_t* p, Py_ssize_t size, int64_t* us) noexcept nogil:
    """Read a timestamp, with or without a time zone, which is UTC."""
    cdef int64_t days, of_day
    if size > 3 and memcmp(p + size - 3, b"+00", 3) == 0:
        size -= 3
    if size < 19 or p[10] != c" ":
        return False
    if not (read_date(p, 10, &days) and read_time(p + 11, size - 11, &of_day)):
        return False
    us[0] = days * DAY_US + of_day
    return True


cdef int hex_of(uint8_t byte) noexcept nogil:
    if is_digit(byte):
        return byte - c"0"
    return byte - c"a" + 10 if c"a" <= byte <= c"f" else -1


cdef Py_ssize_t read_bytes(uint8_t* p, Py_ssize_t size) noexcept nogil:
    r"""Replace ``\x4142`` by its bytes; return how many these are, or -1."""
    cdef Py_ssize_t at, count = (size - 2) // 2
    cdef int high, low
    if size < 2 or size % 2 or p[0] != c"\\" or p[1] != c"x":
        return -1
    for at in range(count):
        high, low = hex_of(p[2 + 2 * at]), hex_of(p[3 + 2 * at])
        if high < 0 or low < 0:
            return -1
        p[at] = <uint8_t>(high * 16 + low)
    return count


cdef Py_ssize_t unescaped(const uint8_t* p, Py_ssize_t size, uint8_t* into) noexcept nogil:
    """Unescape a field in place; return its size."""
    cdef const uint8_t* end = p + size
    cdef uint8_t* start = into
    cdef uint8_t byte
    while p < end:
        byte = p[0]
        p += 1
        if byte == c"\\" and p < end:
            byte = p[0]
            p += 1
            if byte == c"n":
                byte = c"\n"
            elif byte == c"t":
                byte = c"\t"
            elif byte == c"r":
                byte = c"\r"
            elif byte == c"b":
                byte = c"\b"
            elif byte == c"f":
                byte = c"\f"
            elif byte == c"v":
                byte = 0x0B
        into[0] = byte
        into += 1
    return into - start


cdef bint read_float(const uint8_t* p, Py_ssize_t size, bint is_single, int64_t* bits) noexcept nogil:
    """Return the bits of a double; -0 becomes 0, and every NaN is the same, as in Spark."""
    cdef double number
    cdef char* end = NULL
    if size == 0:
        return False
    # A delimiter follows every text, and ends the number.
    number = strtof(<const char*>p, &end) if is_single else strtod(<const char*>p, &end)
    if end != <char*>p + size:
        return False
    if number == 0:
        bits[0] = 0
    elif number != number:
        bits[0] = 0x7FF8_0000_0000_0000
    else:
        memcpy(bits, &number, 8)
    return True


cdef bint read_number(Value* value) noexcept nogil:
    """Remove zeros from the end of a number's text."""
    cdef const uint8_t* p = value.text
    cdef Py_ssize_t size = value.size
    if size == 0 or not (is_digit(p[size - 1])):
        return False
    if memchr(p, c".", size) != NULL:
        while p[size - 1] == c"0":
            size -= 1
        if p[size - 1] == c".":
            size -= 1
    value.size = size
    return True


cdef bint read_as(int kind, int scale, Value* value) noexcept nogil:
    """Return whether the text is of the kind, and read its value if so."""
    cdef const uint8_t* p = value.text
    cdef Py_ssize_t size = value.size
    if kind == TEXT or kind == CONVERTED:
        return True
    if kind == BYTES:  # it has a backslash, so this is our own copy
        size = read_bytes(<uint8_t*>p, size)
        if size >= 0:
            value.size = size
        return size >= 0
    if kind == NUMBER:
        return read_number(value)
    value.is_number = True
    if kind == INTEGER:
        return read_integer(p, size, &value.number)
    if kind == BOOLEAN:
        value.number = size == 1 and p[0] == c"t"
        return size == 1 and (p[0] == c"t" or p[0] == c"f")
    if kind == FLOAT or kind == DOUBLE:
        return read_float(p, size, kind == FLOAT, &value.number)
    if kind == DECIMAL:
        return read_decimal(p, size, scale, &value.number)
    if kind == DATE:
        return read_date(p, size, &value.number)
    if kind == TIMESTAMP:
        return read_timestamp(p, size, &value.number)
    return read_time(p, size, &value.number)


cdef int read_array(Value* value, int kind, int scale, uint8_t* spare) noexcept nogil:
    """Hash an array's elements, their count, and which of them are null.

    ``spare`` has room for twice the text.
    https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    """
    cdef const uint8_t* p = value.text
    cdef const uint8_t* end = p + value.size
    cdef uint8_t* nulls = spare + value.size
    cdef uint64_t hash = SEED
    cdef Py_ssize_t count = 0
    cdef bint has_null = False
    cdef Value item
    if value.size < 2 or (end - 1)[0] != c"}":
        return ANOTHER
    if p[0] != c"{" or p[1] == c"{":
        return NESTED
    p += 1
    while p < end - 1 or (count and (p - 1)[0] == c","):
        p = next_element(p, end, &item, spare)
        if p == NULL:
            return ANOTHER
        nulls[count] = c"N" if item.is_null else c"."
        has_null |= item.is_null
        count += 1
        if not item.is_null:
            if not read_as(kind, scale, &item):
                item.is_number = False
            hash = hash_value(&item, hash)
    hash = hash_number(count, hash)
    if has_null:
        hash = hash_bytes(nulls, count, hash)
    value.number, value.is_number = <int64_t>hash, True
    return READ


cdef const uint8_t* next_element(
    const uint8_t* p, const uint8_t* end, Value* item, uint8_t* spare
) noexcept nogil:
    """Read an element; return where the next one begins, or NULL."""
    cdef bint escaped = False
    item.is_number = item.is_null = False
    if p < end and p[0] == c'"':
        p += 1
        item.text = p
        while p < end and p[0] != c'"':
            escaped |= p[0] == c"\\"
            p += 2 if p[0] == c"\\" else 1
        if p >= end:
            return NULL
        item.size = p - item.text
        if escaped:
            item.size = without_backslashes(item.text, item.size, spare)
            item.text = spare
        p += 1
    else:
        item.text = p
        while p < end and p[0] != c"," and p[0] != c"}":
            p += 1
        item.size = p - item.text
        item.is_null = item.size == 4 and memcmp(item.text, b"NULL", 4) == 0
    if p >= end or (p[0] != c"," and p[0] != c"}"):
        return NULL
    return p + 1


cdef Py_ssize_t without_backslashes(const uint8_t* p, Py_ssize_t size, uint8_t* into) noexcept nogil:
    """Unescape a text; end it with a NUL, as a delimiter would."""
    cdef const uint8_t* end = p + size
    cdef uint8_t* start = into
    while p < end:
        if p[0] == c"\\" and p + 1 < end:
            p += 1
        into[0] = p[0]
        into += 1
        p += 1
    into[0] = 0
    return into - start
