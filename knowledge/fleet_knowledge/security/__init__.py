"""Judges what the arguments, variables and paths of a job can do to a host."""
