"""Tests of cdc that check invariants on generated input."""
