"""Owns bringing agents to hosts over SSH and taking them away again: facts, plan, commands, and
their carrying out.
"""
