"""Contains the programs that a deploy runs on hosts. They need only the standard library of Python
3.6 or newer.
"""
