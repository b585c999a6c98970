"""Tests by need: unit, properties (no server), integration, faults, golden, chaos, containers."""
