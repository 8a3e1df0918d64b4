"""Runs trials: events go into the state machine, its effects are carried out."""
