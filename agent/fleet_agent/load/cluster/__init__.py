"""Spreads the load over several hosts."""
