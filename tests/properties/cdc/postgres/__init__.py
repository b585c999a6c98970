"""Tests of cdc/postgres that check invariants on generated input."""
