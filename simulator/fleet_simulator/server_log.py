"""Writes the log of the simulated server to standard error, in the formats of SGLang 0.5.23 and
NCCL.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

NCCL_VERSION = "2.27.5+cuda12.9"
_QUIET_NCCL = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


class ServerLog:
    """Writes log lines. Each line begins with the local wall time to the second."""

    def __init__(self) -> None:
        self._second = 0
        self._stamp = ""

    def write(self, text: str) -> None:
        """Write `[date time] text`."""
        second = time.time_ns() // 1_000_000_000
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("[%Y-%m-%d %H:%M:%S] ", time.localtime(second))
        self.write_unstamped(self._stamp + text)

    def write_unstamped(self, text: str) -> None:
        """Write a line without the time. The line is dropped if standard error cannot be written,
        for example on a full disk.
        """
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")

    def log_start(self, args: Mapping[str, Any], warnings: list[str], time_scale: float) -> None:
        """Log the lines that a server writes before it loads weights."""
        self.write(
            f"SIMULATED ENGINE: this is not SGLang. A model of time at time scale x{time_scale:g}"
            " makes all numbers below."
        )
        for warning in warnings:
            self.write(warning)
        self.write(f"server_args={dict(args)!r}")

    def log_load(self, args: Mapping[str, Any], took_s: float) -> None:
        """Log the loading of weights and the capture of CUDA graphs."""
        self.write("Load weight begin. avail mem=138.50 GB")
        self.write(
            f"Load weight end. elapsed={took_s:.2f} s, type=SimulatedForCausalLM,"
            " avail mem=61.20 GB, mem usage=77.30 GB."
        )
        if args["tp_size"] > 2 and not args["disable_custom_all_reduce"]:
            self.write(
                "Custom allreduce is disabled because it's not supported on more than two"
                " PCIe-only GPUs."
                " To silence this warning, specify disable_custom_all_reduce=True explicitly."
            )
        if not args["disable_cuda_graph"]:
            self.write(
                "Capture cuda graph begin. This can take up to several minutes. avail mem=10.20 GB"
            )
            self.write(
                "Capture cuda graph end. Time elapsed: 0.00 s. mem usage=1.10 GB."
                " avail mem=9.10 GB."
            )

    def log_nccl(self, seen: Mapping[str, str]) -> None:
        """Log the lines that NCCL writes at level INFO about its environment variables, which are
        in `seen`.
        """
        self.write_unstamped(f"NCCL version {NCCL_VERSION}")
        place = f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [0] NCCL INFO "
        for name, value in sorted(seen.items()):
            if name not in _QUIET_NCCL:
                # NCCL ends the line with a full stop if the value is a number
                stop = "." if value.lstrip("-").isdigit() else ""
                self.write_unstamped(f"{place}{name} set by environment to {value}{stop}")
        self.write_unstamped(
            f"{place}ncclCommInitRank comm 0x1 rank 0 nranks 8 - Init COMPLETE (simulated)"
        )

    def log_peer_lost(self, peer: str) -> None:
        """Log the lines that the ranks of a node write when another node has ended."""
        place = f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [0]"
        self.write_unstamped(
            f"{place} misc/socket.cc:58 NCCL WARN socketProgress:"
            f" Connection closed by remote peer {peer}"
        )
        self.write(
            "Scheduler hit an exception: RuntimeError: NCCL error: remote process exited"
            " or there was a network error (simulated)"
        )

    def log_decode(
        self,
        *,
        running: int,
        queued: int,
        tokens: int,
        accept: tuple[float, float] | None,
        tok_s: float,
    ) -> None:
        """Log a line about the latest decode steps. `accept` is (accept length, accept rate)."""
        length, rate = accept or (0.0, 0.0)
        spec = f"accept len: {length:.2f}, accept rate: {rate:.2f}, " if accept else ""
        self.write(
            f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.00, {spec}"
            f"cuda graph: True, gen throughput (token/s): {tok_s:.2f}, #queue-req: {queued}"
        )

    def log_prefill(
        self, *, sequences: int, new: int, cached: int, running: int, queued: int
    ) -> None:
        """Log one line about a prefill step."""
        self.write(
            f"Prefill batch, #new-seq: {sequences}, #new-token: {new}, #cached-token: {cached},"
            f" token usage: 0.00, #running-req: {running}, #queue-req: {queued},"
            " #pending-token: 0, cuda graph: False"
        )

    def log_access(self, peer: str, request: str, status: str) -> None:
        """Log one answered request in uvicorn's format."""
        self.write(f'INFO:     {peer} - "{request} HTTP/1.1" {status}')
