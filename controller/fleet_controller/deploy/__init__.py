"""Installs agents on hosts over SSH, updates and removes them."""
