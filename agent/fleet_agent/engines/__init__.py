"""Adapts each kind of server to the agent: SGLang, simulated, external."""
