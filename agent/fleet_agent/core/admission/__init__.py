"""Decides which orders the agent accepts: from which controller, for which trials, within which
limits of the host.
"""
