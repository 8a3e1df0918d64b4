"""Holds facts about SGLang, NCCL and hosts by version, and parsers of their output."""
