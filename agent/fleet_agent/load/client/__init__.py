"""Sends requests over HTTP and records when each part of an answer arrived."""
