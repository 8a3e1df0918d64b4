"""Draws on the terminal: tables, progress and colours."""
