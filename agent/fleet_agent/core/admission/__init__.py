"""Decides which orders the agent accepts: from which controller, and within which limits."""
