"""Owns the place where SGLang looks for the one kernel of n-gram speculation."""

from sgl_kernel.tree import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
