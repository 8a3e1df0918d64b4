"""The contract between controller and agents: messages, values, error kinds and metric names."""

__version__ = "0.1.0"
