"""PostgreSQL → log: the way of a change through the daemon.

capture/streaming.py runs the loop. postgres/stream.py receives bytes from the slot, and
stream/translation.py hands them to compiled/fast.pyx, which gives each row its position, and writes
key and value bytes of common messages in one pass. It hands back the others; they take the readable
path, which defines what an event is: wal/ decodes bytes to messages, tables/ knows what the row's
relation means, events/ makes the event with the types in values/, and transforms/ and convert/ make
records of it. kafka/ writes records and the position reached in one transaction.
After that, capture/streaming.py acknowledges the position to PostgreSQL. Rows that exist before the
slot come from the snapshots package, and take the same path from events/ on. records/ and log/ are
what this side and the sinks agree on. docs/explanation/architecture.md draws it file by file.
"""
