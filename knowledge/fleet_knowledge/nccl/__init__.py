"""Knows which NCCL settings take effect, and proves it from the log."""
