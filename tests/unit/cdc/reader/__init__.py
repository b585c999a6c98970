"""Tests of cdc/reader."""
