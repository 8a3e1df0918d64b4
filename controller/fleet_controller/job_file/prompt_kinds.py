"""Owns the kinds of prompts that a workload may ask for, the same as the load side has; holds no
prompt.
"""

from typing import Final

BUILTIN_PREFIX: Final = "builtin:"
BUILTIN_PROMPTS: Final = ("chat", "code", "reasoning", "summarise", "long_context")
FILE_PREFIX: Final = "file:"
RANDOM_PROMPTS: Final = "random"
RANDOM_ON_WIRE: Final = "random:ids"
DEFAULT_PROMPTS: Final = "builtin:chat"
