"""Topics of a real Debezium → the same columns that sinks/log/parse.py makes of Millrace's own.

docs/decisions/0012-debezium-topics.md has the reasons. A run asks ``topics`` in the same way as
those of our own log. ``log`` finds the offsets to read, ``inspection`` makes the plan, and
``changes`` has the plan's changes of a table. The way of a topic:

  ``records``    binary keys and values → marks (which schema), JSON's content; the schemas in use
  ``schemas``    a schema's text, JSON's or Avro's → Connect's schema
  ``described``  schemas and declared types → the table's columns, and how to read each record
  ``members``    the members of rows, schema by schema → why earlier rows are doubtful
  ``forms``      Connect's schema of a value ⇄ a column's type
  ``envelope``   opened records → a column for each member of their keys and rows
  ``parse``      records → typed changes, or events
  ``decoders``, ``values``, ``decimals``  a value, in JSON or Avro → the column's Spark value
"""
