"""Stands in for the SGLang of an image: its entry point serves the simulated engine."""
