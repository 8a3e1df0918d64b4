"""Reads NCCL's log."""
