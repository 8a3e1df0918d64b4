"""Starts the agent, reads its options and answers its gRPC service."""
