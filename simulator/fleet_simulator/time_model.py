"""Models the time of the simulated server: how long a step takes and how many tokens it yields.

A step is one forward pass of a 61-layer mixture-of-experts model on 8 GPUs. It consists of compute,
which takes longer with more tokens, and 122 all-reduces. The latency and bandwidth of an all-reduce
depend on the NCCL variables.

The constants are fitted to measured rates of one stream with a prompt of 40 tokens and 500 output
tokens. Without speculation it reached 62.9 tok/s with NCCL's defaults and 88.8 with tuned
variables. With EAGLE-3 and 5 steps it reached 71.3 and 86.7 tok/s; a verify took 21 to 28 ms, and
the draft less than 5 % of a cycle. All times are seconds of model time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LAYERS = 61
ALL_REDUCES = 2 * LAYERS
BYTES_PER_TOKEN = 7168 * 2
REFERENCE_TP = 8
REFERENCE_OUTPUT_TOKENS = 500
REFERENCE_PROMPT_TOKENS = 40

# Compute of one forward over n tokens: _FIXED + _EXPERTS * experts_read(n) + _PER_TOKEN * n.
_FIXED_S = 7.45e-3
_EXPERTS_S = 0.45e-3
_PER_TOKEN_S = 0.15e-3
_EXPERTS_SHARE = 8 / 384  # experts that one token reads; many tokens together read all of them
_VERIFY_S = 6.69e-3  # a verify runs without the decode graph
_DRAFT_PASS_S = 0.1e-3
_PREFILL_S = 13e-3  # scheduling, tokenising and sampling around a prefill

# One all-reduce: latency + bytes * seconds per byte.
_LATENCY_S = 63e-6
_LATENCY_FLOOR_S = 8e-6
_SIMPLE_S_PER_BYTE = 1 / 20e9
_LL_S_PER_BYTE = 1 / 13e9  # half of each line that LL sends is a flag
_LL128_S_PER_BYTE = 1 / 18e9
_LATENCY_CHANGES_S: dict[tuple[str, str], float] = {
    ("NCCL_PROTO", "LL"): -22.0e-6,
    ("NCCL_PROTO", "LL128"): -11.0e-6,
    ("NCCL_ALGO", "RING"): -6.3e-6,
    ("NCCL_ALGO", "TREE"): 5.0e-6,
    ("NCCL_P2P_LEVEL", "SYS"): -10.2e-6,
    ("NCCL_P2P_LEVEL", "LOC"): 14.0e-6,
    ("NCCL_P2P_LEVEL", "NVL"): 14.0e-6,
    ("NCCL_P2P_LEVEL", "PIX"): 9.0e-6,
    ("NCCL_P2P_DISABLE", "1"): 14.0e-6,
    ("NCCL_SHM_DISABLE", "1"): 9.0e-6,
    ("NCCL_NTHREADS", "256"): 2.0e-6,
    ("NCCL_NTHREADS", "128"): 5.0e-6,
    ("NCCL_NTHREADS", "64"): 9.0e-6,
    # anything else, such as NTHREADS=512 (NCCL's default), MAX_NCHANNELS or BUFFSIZE, has no
    # effect
}

_ACCEPTANCE = {"EAGLE3": 0.49, "EAGLE": 0.49, "NEXTN": 0.49, "STANDALONE": 0.6, "NGRAM": 0.4}
_OTHER_ACCEPTANCE = 0.45
_STANDALONE_PASS_S = 1.2e-3


@dataclass(frozen=True, slots=True)
class Speculation:
    """Holds the settings of speculation after SGLang has resolved them.

    `depth`: the maximum number of drafts that one cycle can accept.
    `draft_tokens`: the number of tokens that one forward pass verifies.
    `matches_draft`: False if EAGLE was requested for an EAGLE-3 draft, so nothing is accepted.
    """

    algorithm: str
    depth: int
    topk: int
    draft_tokens: int
    matches_draft: bool = True


@dataclass(frozen=True, slots=True)
class TimingConfiguration:
    """Holds everything that decides how long a step takes. `nccl` are the NCCL variables of the
    server process.
    """

    tp_size: int = REFERENCE_TP
    nccl: Mapping[str, str] = field(default_factory=dict)
    speculation: Speculation | None = None


def all_reduce_s(tokens: int, configuration: TimingConfiguration) -> float:
    """Return the seconds of one all-reduce of `tokens` activations; 0 on one GPU."""
    if configuration.tp_size <= 1:
        return 0.0
    nccl = configuration.nccl
    latency = _LATENCY_S + sum(
        _LATENCY_CHANGES_S.get((name, value.upper()), 0.0) for name, value in nccl.items()
    )
    ring_hops = (configuration.tp_size - 1) / (REFERENCE_TP - 1)
    per_byte = {"LL": _LL_S_PER_BYTE, "LL128": _LL128_S_PER_BYTE}.get(
        nccl.get("NCCL_PROTO", "").upper(), _SIMPLE_S_PER_BYTE
    )
    return max(latency * ring_hops, _LATENCY_FLOOR_S) + tokens * BYTES_PER_TOKEN * per_byte


def compute_s(tokens: int) -> float:
    """Return the seconds for which one GPU computes in a forward pass over `tokens`."""
    experts_read = (1 - (1 - _EXPERTS_SHARE) ** tokens) / _EXPERTS_SHARE
    return _FIXED_S + _EXPERTS_S * experts_read + _PER_TOKEN_S * tokens


def forward_s(tokens: int, configuration: TimingConfiguration) -> float:
    """Return the seconds of one forward pass over `tokens`, with its all-reduces."""
    return compute_s(tokens) + ALL_REDUCES * all_reduce_s(tokens, configuration)


def verify_s(batch: int, configuration: TimingConfiguration) -> float:
    """Return the seconds in which the target model verifies the drafts of `batch` requests."""
    spec = configuration.speculation
    return _VERIFY_S + forward_s(batch * (spec.draft_tokens if spec else 1), configuration)


def draft_s(batch: int, configuration: TimingConfiguration) -> float:
    """Return the seconds for which the draft model runs in one cycle; 0 for an n-gram table."""
    spec = configuration.speculation
    if spec is None or spec.algorithm == "NGRAM":
        return 0.0
    one_pass = (
        _STANDALONE_PASS_S
        if spec.algorithm == "STANDALONE"
        else _DRAFT_PASS_S + _PER_TOKEN_S / LAYERS * batch * spec.topk
    )
    return spec.depth * (one_pass + 2 * all_reduce_s(batch * spec.topk, configuration))


def decode_s(batch: int, configuration: TimingConfiguration) -> float:
    """Return the seconds of one decode step with `batch` running requests.

    Under speculation this is one cycle: draft and verify.
    """
    if configuration.speculation is None:
        return forward_s(batch, configuration)
    return draft_s(batch, configuration) + verify_s(batch, configuration)


def prefill_s(new_tokens: int, configuration: TimingConfiguration) -> float:
    """Return the seconds of a prefill that computes `new_tokens` tokens, those that are not in the
    prefix cache.
    """
    return _PREFILL_S + forward_s(max(new_tokens, 1), configuration)


def accept_shares(speculation: Speculation) -> tuple[float, ...]:
    """Return the share of cycles that yield 1, 2, … tokens, with the bonus token.

    The shares are geometric, because a draft is accepted only if all drafts before it are.
    """
    rate = 0.0
    if speculation.matches_draft:
        rate = _ACCEPTANCE.get(speculation.algorithm, _OTHER_ACCEPTANCE)
    more_branches = max(speculation.topk, 1) - 1 if speculation.algorithm != "NGRAM" else 0
    rate = 1 - (1 - rate) * 0.9**more_branches
    stops = tuple(rate**drafts * (1 - rate) for drafts in range(speculation.depth))
    return (*stops, rate**speculation.depth)


def accept_length(configuration: TimingConfiguration) -> float:
    """Return the mean number of tokens that a decode step yields per request; 1 without
    speculation.
    """
    if configuration.speculation is None:
        return 1.0
    return sum(
        length * share
        for length, share in enumerate(accept_shares(configuration.speculation), start=1)
    )


def stream_tok_s(
    configuration: TimingConfiguration,
    tokens: int = REFERENCE_OUTPUT_TOKENS,
    prompt_tokens: int = REFERENCE_PROMPT_TOKENS,
) -> float:
    """Return the output tokens per second of a single request without noise.

    The time to first token is included.
    """
    steps = (tokens - 1) / accept_length(configuration)
    return tokens / (prefill_s(prompt_tokens, configuration) + steps * decode_s(1, configuration))
