"""Reads sockets with C code that is compiled on the host."""
