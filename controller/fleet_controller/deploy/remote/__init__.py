"""Owns the programs that deploy sends to hosts. They use the standard library of Python 3.6 and
newer, and import nothing of ours.
"""
