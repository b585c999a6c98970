"""The demo: real data, a workload, and a proof at the end."""
