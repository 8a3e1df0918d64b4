"""Owns the names of the prompt sets that a workload may ask for, as the load side knows them; holds no prompt."""

BUILTIN_PROMPTS = ("chat", "code", "random")
RANDOM_PROMPTS = "builtin:random"
