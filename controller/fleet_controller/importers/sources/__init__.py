"""Reads the files that start servers: compose, Kubernetes, Dockerfile, systemd, docker run."""
