"""PostgreSQL → log: the way of a change through the daemon.

postgres/stream.py reads frames from the slot; wal/ turns their bytes into pgoutput messages;
transactions.py gives every row its position; events.py turns a row into keyed Debezium events
through the codec in values/ (where the settings ask for more, readable.py does: reference.py by the
rules, then transforms and converters); kafka/producer.py writes events and the position reached in
one Kafka transaction; only then does streaming.py acknowledge to PostgreSQL. Rows that exist before
the slot come from the snapshots package and take the same way from events.py on. records/ is what
this side and the sinks agree on.
"""
