"""Generated stubs of version 1 of the contract; made by `make protos`, never edited."""
