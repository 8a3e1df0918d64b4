"""Connects to hosts over SSH and opens tunnels."""
