"""PostgreSQL → log: the way of a change through the daemon.

capture/streaming.py runs the loop. postgres/stream.py receives bytes from the slot.
stream/translation.py hands them to compiled/fast.pyx, which assigns each row its position, and
writes key and value bytes of common messages in one pass. It hands back the others. They take the
readable path, which defines the events: wal/ decodes bytes to messages, tables/ knows the relation
of a row, events/ makes the event with the types in values/, and transforms/ and convert/ make
records of it. kafka/ writes the records and the position reached in one transaction. Then
capture/streaming.py acknowledges the position to PostgreSQL. The snapshots package reads rows that
exist before the slot; they take the same path from events/ on. records/ and log/ define what this
side and the sinks share. docs/explanation/architecture.md draws the path file by file.
"""
