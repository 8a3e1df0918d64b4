"""Reads server logs in chunks of any size."""
