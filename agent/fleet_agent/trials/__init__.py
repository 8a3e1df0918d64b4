"""Runs trials: passes events to the state machine and carries out its effects."""
