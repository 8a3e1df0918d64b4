"""Sends requests over HTTP and records when each part of a response arrived."""
