"""Launches SGLang and reads back what it runs with."""
