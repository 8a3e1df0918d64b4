"""The contract between controller and agents: messages, values, error kinds and metric names.
Imports nothing of ours.
"""

__version__ = "0.1.0"
