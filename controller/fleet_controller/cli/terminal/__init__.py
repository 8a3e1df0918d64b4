"""Draws on the terminal: console, live display, progress, interrupts."""
