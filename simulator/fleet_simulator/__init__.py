"""A server with SGLang's HTTP endpoints and a model of time in place of a GPU."""
