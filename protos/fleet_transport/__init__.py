"""Secures connections: mutual TLS, identities, revocation, request limits."""
