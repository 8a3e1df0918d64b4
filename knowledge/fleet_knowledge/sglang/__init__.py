"""Knows SGLang's arguments and variables by version, and what SGLang changes by itself."""
