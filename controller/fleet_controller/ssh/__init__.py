"""Connects to hosts over SSH."""
