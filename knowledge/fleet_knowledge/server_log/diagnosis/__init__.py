"""Decides from a server log why a server ended or how fast it ran."""
