"""Parses shell text: words, quoting, variables and commands."""
