"""Packages and jars → real servers, started as child processes.

The one way in which the demo, the tests and the benchmarks get a PostgreSQL, a Kafka broker and an
OpenSearch node. From the bottom up: `processes` (accounts, ports, a child and its log, and how
every server is stopped, killed and paused), `certificates` and `jars` (what servers are made of),
`postgres`, `kafka` and `opensearch` (one server each), `stack` (all of them side by side, also one
that outlives the process that started it), `pipeline` (Millrace itself on these servers).

Beside them is what only a clone can do: `packages` (wheels), `manifest` (the list of Spark's jars)
and `notice` (licences).
"""
