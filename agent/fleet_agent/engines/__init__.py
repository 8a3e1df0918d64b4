"""Adapts each kind of server: SGLang, simulated, external."""
