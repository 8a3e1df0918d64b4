"""Renders results as text, JSON and CSV."""
