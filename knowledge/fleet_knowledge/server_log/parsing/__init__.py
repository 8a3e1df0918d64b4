"""Splits a server log into records."""
