"""Programs that deploy runs on hosts: standard library only, Python 3.6 or newer."""
