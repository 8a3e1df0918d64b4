"""Owns the moving of KV slots between requests' tables. `req_to_token[r, i]` is the slot that holds
token i of request r.
"""

import ctypes

import torch


def _spans(req_pool_indices, start, end):
    yield from zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True)


def assign_req_to_token_pool_cpu(
    req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len
):
    """req_to_token[r, start:end] = the next slots of out_cache_loc."""
    taken = 0
    for row, begin, stop in _spans(req_pool_indices, start, end):
        width = stop - begin
        req_to_token[row, begin:stop] = out_cache_loc[taken : taken + width].to(req_to_token.dtype)
        taken += width


def assign_extend_cache_locs_cpu(
    req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len
):
    """The next slots of out_cache_loc = req_to_token[r, start:end]."""
    taken = 0
    for row, begin, stop in _spans(req_pool_indices, start, end):
        width = stop - begin
        out_cache_loc[taken : taken + width] = req_to_token[row, begin:stop].to(out_cache_loc.dtype)
        taken += width


def assign_draft_cache_locs_contiguous_cpu(  # noqa: PLR0917 - the interface is SGLang's
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, num_steps
):
    """The next topk * num_steps slots after the end of each request."""
    assign_extend_cache_locs_cpu(
        req_pool_indices,
        req_to_token,
        seq_lens,
        seq_lens + topk * num_steps,
        out_cache_loc,
        pool_len,
    )


def build_draft_decode_metadata_cpu(
    req_to_token, req_pool_indices, seq_lens, topk, num_steps, pool_len
):
    """[requests * topk, pool_len]: for each branch the slots of the prefix, then the branch's own
    num_steps slots.
    """
    rows = req_pool_indices.tolist()
    table = torch.zeros((len(rows) * topk, pool_len), dtype=req_to_token.dtype)
    for place, (row, length) in enumerate(zip(rows, seq_lens.tolist(), strict=True)):
        for branch in range(topk):
            line = table[place * topk + branch]
            line[:length] = req_to_token[row, :length]
            begin = length + branch * num_steps
            line[length : length + num_steps] = req_to_token[row, begin : begin + num_steps]
    return table


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, stride):
    """The last accepted token of each request; accept_tokens has `stride` places for each."""
    firsts = torch.arange(accept_lens.numel()) * stride
    bonus_tokens.copy_(accept_tokens.flatten()[firsts + accept_lens.flatten().to(torch.int64) - 1])


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    """The slots of the accepted tokens without gaps; a rejected one has index -1."""
    index = accept_index.flatten()
    kept = index[index > -1].to(torch.int64)
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """In each layer's buffer, given as an address: rows src_loc to rows tgt_loc, `stride` bytes a
    row; the two may overlap.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(address + target * stride, row, stride)
