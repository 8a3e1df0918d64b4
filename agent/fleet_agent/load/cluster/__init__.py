"""Sends the load of one trial from several hosts."""
