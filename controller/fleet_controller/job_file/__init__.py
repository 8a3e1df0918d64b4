"""Reads and checks the job file."""
