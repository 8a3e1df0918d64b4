"""Knows which NCCL settings take effect, and verifies them in NCCL's log."""
