"""Knows SGLang's arguments and variables by version, and what it changes by itself."""
