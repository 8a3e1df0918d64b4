"""Owns attention over paged keys and values for SGLang's CPU backend, and its registration as torch
operators.

Shapes: q [tokens, heads, head size]; buffers [slots, key-value heads, head size]; o like q.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

_DECODE = (
    "decode_attention_cpu(Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale, Tensor(c!) o,"
    " Tensor? k, Tensor? v, Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens,"
    " float scale, float cap, bool cross, int window, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
_EXTEND = (
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_buffer, Tensor v_buffer, float k_scale,"
    " float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_lens, Tensor extend_starts,"
    " int max_extend, float scale, float cap, bool cross, int window, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask,"
    " bool is_causal) -> ()"
)
_library = torch.library.Library("sgl_kernel", "FRAGMENT")


def register():
    """Make both known as torch.ops.sgl_kernel.*; called once."""
    for schema, function in ((_DECODE, decode_attention_cpu), (_EXTEND, extend_attention_cpu)):
        name = _library.define(schema)
        _library.impl(name, function, "CPU")


def _attend(q, keys, values, scale, mask=None):
    """q [new, heads, size] over keys [all, kv heads, size]; mask [new, all], True where a token may
    look.
    """
    q, keys, values = (part.transpose(0, 1).unsqueeze(0) for part in (q, keys, values))
    out = scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != keys.shape[1]
    )
    return out.squeeze(0).transpose(0, 1)


def _refuse(cap, cross, window, sinks):
    if cap > 0 or cross or window > 0 or sinks is not None:
        raise NotImplementedError(
            "the stand-in attends plainly: no soft cap, cross attention, sliding window or sinks"
        )


def decode_attention_cpu(  # noqa: PLR0917 - the interface is SGLang's
    q,
    k_buffer,
    v_buffer,
    k_scale,
    v_scale,
    o,
    k,
    v,
    loc,
    attn_logits,
    req_to_token,
    req_pool_indices,
    seq_lens,
    scale,
    cap,
    cross,
    window,
    encoder_lens,
    sinks,
):
    """One new token a request; its key and value, when given, are stored at `loc` first."""
    _refuse(cap, cross, window, sinks)
    if k is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for place, (row, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        slots = req_to_token[row, :length].to(torch.int64)
        o[place] = _attend(
            q[place : place + 1], k_buffer[slots].to(q.dtype), v_buffer[slots].to(q.dtype), scale
        )[0]


def extend_attention_cpu(  # noqa: PLR0917 - the interface is SGLang's
    q,
    k,
    v,
    o,
    k_buffer,
    v_buffer,
    k_scale,
    v_scale,
    req_to_token,
    req_pool_indices,
    seq_lens,
    extend_lens,
    extend_starts,
    max_extend,
    scale,
    cap,
    cross,
    window,
    encoder_lens,
    sinks,
    tree_mask,
    is_causal,
):
    """Several new tokens a request, over its prefix and each other: causally, or as tree_mask
    [requests, new, new] says.
    """
    _refuse(cap, cross, window, sinks)
    requests = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_lens.tolist(),
        extend_starts.tolist(),
        strict=True,
    )
    for place, (row, length, new, start) in enumerate(requests):
        if not new:
            continue
        prefix = length - new
        slots = req_to_token[row, :prefix].to(torch.int64)
        span = slice(start, start + new)
        keys = torch.cat([k_buffer[slots].to(q.dtype), k[span].view(new, *k_buffer.shape[1:])])
        values = torch.cat([v_buffer[slots].to(q.dtype), v[span].view(new, *v_buffer.shape[1:])])
        mask = torch.ones((new, length), dtype=torch.bool)
        if tree_mask is not None:
            mask[:, prefix:] = tree_mask.view(-1, new, new)[place].to(torch.bool)
        elif is_causal:
            mask[:, prefix:] = torch.ones((new, new), dtype=torch.bool).tril()
        o[span] = _attend(q[span], keys, values, scale, mask)
