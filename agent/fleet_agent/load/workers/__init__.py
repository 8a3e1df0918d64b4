"""Runs the processes that send the load, and checks that they keep up."""
