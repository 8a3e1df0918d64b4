"""Reads YAML files with the place of every key, and reports findings by line and column."""
