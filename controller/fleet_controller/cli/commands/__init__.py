"""The commands of fleetctl, one module each."""
