"""Holds jobs and trials in memory. Each change is written to the store first."""
