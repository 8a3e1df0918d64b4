"""Launches the simulated server of simulator/."""
