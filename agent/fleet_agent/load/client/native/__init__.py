"""Reads sockets in C, compiled on the host."""
