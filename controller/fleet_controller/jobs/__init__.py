"""Holds jobs and trials in memory; writes each change to the store first."""
