"""Owns the names of the prompt sets that a workload may ask for, the same as the load side has; holds no prompt."""

PREFIX = "builtin:"
BUILTIN_PROMPTS = ("chat", "code", "reasoning", "summarise")
