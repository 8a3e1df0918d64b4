"""Reads the files that people launch servers with: compose files, manifests, Dockerfiles, units."""
