"""Tests of cdc/convert."""
