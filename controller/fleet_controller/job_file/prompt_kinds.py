"""Owns the kinds of prompts that a workload may ask for, the same as the load side has; holds no prompt."""

from typing import Final

PREFIX: Final = "builtin:"
BUILTIN_PROMPTS: Final = ("chat", "code", "reasoning", "summarise", "long_context")
FILE: Final = "file:"
RANDOM: Final = "random"
RANDOM_ON_WIRE: Final = "random:ids"
DEFAULT: Final = "builtin:chat"
