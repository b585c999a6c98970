"""Measurements on real servers, each against a yardstick of the same run; see README.md."""
