"""Connects to hosts over SSH, runs programs there, and forwards sockets to agents."""
