"""Reads YAML files with the position of each key, and collects findings about the files."""
