"""Stores jobs, attempts, events and runs in SQLite or PostgreSQL."""
