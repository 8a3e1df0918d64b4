"""Reading of what hosts tell of themselves: topology, GPUs, processors."""
