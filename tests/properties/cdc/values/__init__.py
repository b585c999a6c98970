"""Tests of cdc/values that check invariants on generated input."""
