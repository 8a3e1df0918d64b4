"""Decides when trials start, are retried or given up, and when hosts are quarantined (pure)."""
