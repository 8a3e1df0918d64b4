"""Keeps a connection to each agent, validates its events and watches the health of hosts."""
