"""Connects to hosts over SSH, runs programs there, and forwards local sockets to the agents."""
