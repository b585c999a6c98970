"""Tests of what reads topics of a real Debezium."""
