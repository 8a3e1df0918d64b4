"""Adapters for each kind of server: SGLang, simulated, external."""
