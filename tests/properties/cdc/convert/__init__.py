"""Tests of cdc/convert that check invariants on generated input."""
