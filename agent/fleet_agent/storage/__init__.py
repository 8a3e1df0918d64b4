"""Keeps the journal and the artifacts of trials on disk, and reads the host's secrets."""
