"""Builds the command line, environment and CPU binding of an SGLang server."""
