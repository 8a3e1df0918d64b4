"""Splits a log into records."""
