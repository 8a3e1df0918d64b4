"""Holds tables of NCCL and RCCL variables by version."""
