"""Generated stubs and values of version 1 of the contract: `make protos` writes them."""
