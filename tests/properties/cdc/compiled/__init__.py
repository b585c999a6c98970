"""Tests of cdc/compiled that check invariants on generated input."""
