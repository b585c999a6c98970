"""The contract: everything that both sides of the log must agree on, and nothing else."""
