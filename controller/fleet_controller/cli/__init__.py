"""Implements fleetctl: options, connection to the controller, exit codes."""
