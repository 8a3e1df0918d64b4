"""Knows the rules of speculative decoding in SGLang."""
