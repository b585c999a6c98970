"""Topics that a real Debezium wrote → the columns that sinks/log/parse.py gives of Millrace's own.

docs/decisions/0012-debezium-topics.md has the reasons. A run asks ``topics``, as it asks those of
our own log: ``log`` says what there is to read, ``inspection`` makes the plan, and ``changes`` has
what that applies to a table. The way of a topic:

``records``  binary keys and values → marks (which schema), what JSON says; the schemas in use
``schemas``  a schema's text, JSON's or Avro's → Connect's schema
``described``  schemas and declared types → the table's columns, and how to read each record
``members``  what rows have, schema after schema → why rows of before are doubtful
``forms``  Connect's schema of a value ⇄ a column's type
``envelope``  opened records → a column for each member of their keys and rows
``parse``  records → typed changes, or events
``decoders``, ``values``, ``decimals``  a value, in JSON or in Avro → the column's Spark value
"""
