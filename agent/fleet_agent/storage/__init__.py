"""Keeps the journal, the artifacts of trials and the secrets on disk."""
