"""Compares the configuration that took effect with the one that was requested."""
