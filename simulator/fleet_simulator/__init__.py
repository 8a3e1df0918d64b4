"""A server with the HTTP endpoints of SGLang and a model of time in place of a GPU."""
