"""Turns recorded requests into metrics, tables and files."""
