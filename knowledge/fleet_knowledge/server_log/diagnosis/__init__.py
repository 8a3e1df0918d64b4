"""Finds out from a log why a server ended and how fast it decoded."""
