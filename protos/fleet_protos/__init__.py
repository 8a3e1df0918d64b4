"""Defines the contract between controller and agents: messages, values, errors, metric names."""

__version__ = "0.1.0"
