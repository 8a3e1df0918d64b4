"""Tables of NCCL variables: what each means, and what it excludes."""
