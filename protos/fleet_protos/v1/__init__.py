"""Generated stubs of version 1 of the contract: `make protos` writes them."""
