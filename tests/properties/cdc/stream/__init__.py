"""Tests of cdc/stream that check invariants on generated input."""
