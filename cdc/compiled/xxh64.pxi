"""Bytes and numbers → their hash, as in Spark's ``xxhash64``: XXH64, on little-endian machines.

https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

cdef uint64_t SEED = 42
cdef uint64_t P1 = 0x9E3779B185EBCA87ULL
cdef uint64_t P2 = 0xC2B2AE3D27D4EB4FULL
cdef uint64_t P3 = 0x165667B19E3779F9ULL
cdef uint64_t P4 = 0x85EBCA77C2B2AE63ULL
cdef uint64_t P5 = 0x27D4EB2F165667C5ULL

cdef struct Value:  # a column's value: bytes, a number, or null
    const uint8_t* text
    Py_ssize_t size
    int64_t number
    bint is_number
    bint is_null
    bint is_odd  # a function reads it


cdef inline uint64_t rotated(uint64_t number, int bits) noexcept nogil:
    return (number << bits) | (number >> (64 - bits))


cdef inline uint64_t round_of(uint64_t state, uint64_t word) noexcept nogil:
    return rotated(state + word * P2, 31) * P1


cdef inline uint64_t merged(uint64_t hash, uint64_t state) noexcept nogil:
    return (hash ^ round_of(0, state)) * P1 + P4


cdef inline uint64_t word_at(const uint8_t* p) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, p, 8)
    return word


cdef inline uint64_t mixed(uint64_t hash) noexcept nogil:
    hash = (hash ^ (hash >> 33)) * P2
    hash = (hash ^ (hash >> 29)) * P3
    return hash ^ (hash >> 32)


cdef uint64_t hash_bytes(const uint8_t* p, Py_ssize_t size, uint64_t seed) noexcept nogil:
    """Return XXH64, on a little-endian machine."""
    cdef const uint8_t* end = p + size
    cdef uint64_t a, b, c, d, hash
    cdef uint32_t half
    if size >= 32:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while end - p >= 32:
            a = round_of(a, word_at(p))
            b = round_of(b, word_at(p + 8))
            c = round_of(c, word_at(p + 16))
            d = round_of(d, word_at(p + 24))
            p += 32
        hash = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18)
        hash = merged(merged(merged(merged(hash, a), b), c), d)
    else:
        hash = seed + P5
    hash += <uint64_t>size
    while end - p >= 8:
        hash = rotated(hash ^ round_of(0, word_at(p)), 27) * P1 + P4
        p += 8
    if end - p >= 4:
        memcpy(&half, p, 4)
        hash = rotated(hash ^ (half * P1), 23) * P2 + P3
        p += 4
    while p < end:
        hash = rotated(hash ^ (p[0] * P5), 11) * P1
        p += 1
    return mixed(hash)


cdef inline uint64_t hash_number(int64_t number, uint64_t seed) noexcept nogil:
    cdef uint64_t hash = seed + P5 + 8
    return mixed(rotated(hash ^ round_of(0, <uint64_t>number), 27) * P1 + P4)


cdef inline uint64_t hash_value(const Value* value, uint64_t seed) noexcept nogil:
    if value.is_null:
        return seed
    if value.is_number:
        return hash_number(value.number, seed)
    return hash_bytes(value.text, value.size, seed)
