"""Reads the state of the host: GPUs, memory, processes, ports, clock and model files."""
