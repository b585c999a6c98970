"""Tests of cdc/events that check invariants on generated input."""
