"""Tests by need: unit (no server), integration, faults, golden, properties."""
