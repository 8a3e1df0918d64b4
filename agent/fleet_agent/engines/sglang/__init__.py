"""Launches SGLang and reads which configuration took effect."""
