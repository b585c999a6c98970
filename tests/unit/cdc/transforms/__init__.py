"""Tests of cdc/transforms."""
