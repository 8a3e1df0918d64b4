"""Checks the host, starts the server of a trial, watches it and stops it."""
