"""What the agent reads of its own host: GPUs, links, kernel, memory. Changes nothing and ends no
process.
"""
