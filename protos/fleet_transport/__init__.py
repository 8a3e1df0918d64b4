"""Secures the connections between users, controller and agents: mutual TLS, identities, limits,
sockets.
"""
