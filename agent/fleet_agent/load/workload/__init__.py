"""Plans the requests of a run: when each is sent and what it contains."""
