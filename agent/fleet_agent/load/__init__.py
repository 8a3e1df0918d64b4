"""Implements the load process: sends the requests of a run through Ray tasks and summarises the
results.
"""
