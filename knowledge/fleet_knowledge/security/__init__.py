"""Owns what variables and arguments of a server can do to its host beyond tuning it, as facts.
Allows and refuses nothing.
"""
