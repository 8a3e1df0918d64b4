"""Decides what happens to trials and hosts: scheduling, retries, quarantine, giving up (pure)."""
