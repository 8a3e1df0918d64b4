"""Decides what a trial does next: state machine, gates, stop rule, GPU allocation (pure)."""
