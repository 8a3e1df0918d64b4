"""Splits a log into messages and reads batch lines."""
