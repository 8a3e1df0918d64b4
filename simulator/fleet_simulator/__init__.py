"""Serves SGLang's HTTP endpoints with a model of time in place of a GPU."""
