"""Computes launch values, intervals and verdicts from stored runs (pure)."""
