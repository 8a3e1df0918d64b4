"""Reads server logs, any number of bytes at a time."""
