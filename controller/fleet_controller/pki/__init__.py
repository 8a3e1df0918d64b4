"""Issues, rotates and revokes the fleet's certificates."""
