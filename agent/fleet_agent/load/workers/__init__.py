"""Runs the Ray workers that send the load, and checks that they keep up."""
