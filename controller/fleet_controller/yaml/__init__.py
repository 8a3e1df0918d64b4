"""Reads YAML with the position of each key, and collects findings."""
