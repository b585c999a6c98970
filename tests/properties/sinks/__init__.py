"""Tests of sinks that check invariants on generated input."""
