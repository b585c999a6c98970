"""Topics that a real Debezium wrote → the columns that sinks/log/parse.py gives of Millrace's own.

docs/decisions/0012-debezium-topics.md says why things are as they are. A run asks ``origin``, in
the place of our own log's: ``log`` and ``late`` say what there is to read, ``part`` a part of it,
``planned`` what becomes a plan, ``apply`` a table's commit. The way of a topic:

``records``  binary keys and values → marks (which schema), and what JSON says
``discovery``  all new records → the schemas that they have, and the TRUNCATEs among them
``json_schema``, ``avro_schema``  a schema's text → Connect's schema
``described``  schemas, and types that were told → the table's columns, and how to read each record
``forms``  Connect's schema of a value ⇄ a column's type
``parse``  records → typed changes, or rows that come and go
``values``, ``decimals``, ``placeholders``, ``carriers``  one value, in JSON or in Avro
``fitted``  a value → the derived table's column
``truncate``  which rows a TRUNCATE takes away
``repeated``, ``spliced``  what a connector that crashed wrote again
``snapshots``  whether rows without a key were read twice
"""
