"""Keeps jobs, attempts, events and runs; append-only where results are concerned."""
