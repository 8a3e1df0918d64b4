"""Starts the controller and answers its gRPC service."""
