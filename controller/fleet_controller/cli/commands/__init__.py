"""Implements the commands of fleetctl, one module for each command."""
