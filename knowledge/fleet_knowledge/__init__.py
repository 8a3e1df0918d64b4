"""Facts about SGLang, NCCL and hosts by version, and readers of their output (pure)."""
