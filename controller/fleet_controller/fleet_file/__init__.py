"""Reads and checks the fleet file."""
