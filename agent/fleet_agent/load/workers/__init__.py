"""Runs the Ray workers that send the load, and checks that these workers are fast enough."""
