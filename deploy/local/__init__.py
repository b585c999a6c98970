"""Packages and jars -> real servers, started as child processes.

The one way in which the demo, the tests and the benchmarks get a PostgreSQL, a Kafka broker and an
OpenSearch node. From the bottom up: `accounts` and `ports` (what the machine gives), `processes`
(a child and its log), `certificates` and `jars` (what servers are made of), `postgres`, `kafka` and
`opensearch` (one server each), `stack` (all of them side by side), `kept` (a stack that outlives
the process that started it), `flights` and `workload` (real rows, and life in them).
"""
