"""The rules of speculative decoding in SGLang."""
