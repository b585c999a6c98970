"""Tests by need: unit and properties (no server), integration, faults, golden, chaos, containers."""
