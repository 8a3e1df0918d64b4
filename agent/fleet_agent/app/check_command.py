"""Implements `fleet-agent check`, which checks this host without a trial and prints the findings
and the host's fingerprint.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from fleet_agent.host.fingerprint import read_fingerprint
from fleet_agent.host.gpus import Gpus, RecordedGpus
from fleet_agent.host.host_state import HostState
from fleet_agent.host.nvml import NvmlGpus
from fleet_agent.server.host_findings import ERROR, Finding
from fleet_agent.server.preflight import (
    check_clock,
    check_compiler,
    check_disk,
    check_gpus,
    check_shm,
)
from fleet_protos.errors import ExitCode


def run_check(words: Sequence[str]) -> int:
    """Print the findings about this host and its fingerprint. Return 1 if a finding is an error,
    otherwise 0. Raises ConfigError if the file of --recorded-gpus is invalid.
    """
    options = _parser().parse_args(words)
    gpus: Gpus = RecordedGpus(options.recorded_gpus) if options.recorded_gpus else NvmlGpus()
    found = check_host(HostState(gpus, options.state))
    facts = read_fingerprint(gpus, gpus.topology_text()).facts()
    if options.json:
        _print(
            json.dumps(
                {"findings": [finding.to_json() for finding in found], "fingerprint": facts},
                indent=2,
            )
        )
    else:
        for finding in found:
            _print(str(finding))
        _print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    return ExitCode.FAILED if any(finding.severity == ERROR for finding in found) else ExitCode.DONE


def check_host(host: HostState) -> tuple[Finding, ...]:
    """Return the findings that concern every trial on this host. All its GPUs are checked. This
    blocks: call it in a thread.
    """
    reading = host.gpus.read()
    indices = [gpu.index for gpu in reading.gpus]
    gpus = check_gpus(reading, indices) if indices or reading.fault else []
    return (
        *check_disk(host.state),
        *gpus,
        *check_shm(len(indices)),
        *check_clock(host),
        *check_compiler(),
    )


def _parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="fleet-agent check",
        description="Check this host, and print the findings and the host's fingerprint.",
    )
    parse.add_argument(
        "--state",
        type=Path,
        default=Path("/tmp"),
        help="folder whose disk is checked for free space (default: /tmp)",
    )
    parse.add_argument(
        "--recorded-gpus",
        type=Path,
        default=None,
        metavar="FILE",
        help="read the state of the GPUs from this JSON file instead of asking the driver",
    )
    parse.add_argument("--json", action="store_true", help="print JSON")
    return parse


def _print(text: str) -> None:
    print(text)  # noqa: T201 - its output
