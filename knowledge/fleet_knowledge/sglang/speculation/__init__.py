"""Facts about SGLang's speculative decoding."""
