"""Packages and jars → real servers, started as child processes.

The demo, the tests and the benchmarks all start PostgreSQL, Kafka brokers and OpenSearch nodes in
this way. From the bottom up:

- `processes`: accounts, ports, a child and its log, and how every server is stopped, killed and
  paused
- `certificates` and `jars`: the servers' parts
- `postgres`, `kafka` and `opensearch`: one server each
- `stack`: all of them side by side, which may outlive the process that started it
- `pipeline`: Millrace itself on these servers

Other modules work only in a clone: `packages` (wheels), `manifest` (the list of Spark's jars) and
`notice` (licences).
"""
