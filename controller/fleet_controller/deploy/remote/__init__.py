"""The programs that a deploy runs on hosts, with the standard library of Python 3.6 or newer."""
