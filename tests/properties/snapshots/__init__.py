"""Tests of snapshots that check invariants on generated input."""
