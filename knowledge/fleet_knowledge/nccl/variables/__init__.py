"""Tables of NCCL and RCCL variables by version."""
