"""Owns the gathering of a launch's proof on this host: NCCL's words and files, the loaded library,
what is installed. Judges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_agent.engines.sglang.proof import effective_args, installed_versions, nccl_files
from fleet_agent.engines.sglang.proof.nccl_gates import NcclEvidence
from fleet_knowledge.nccl.inspector_output import read_inspector
from fleet_knowledge.nccl.log.nccl_reader import NcclReader
from fleet_knowledge.release import Release
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import TrialSpec

WITNESS_LOG = "witness.log"  # of the launch that only shows what NCCL does


@dataclass(frozen=True, slots=True)
class LaunchToProve:
    """The launch to prove. `args` are those asked for, as they were passed; `installed` as
    `versions.installed` tells it.
    """

    spec: TrialSpec
    log: Path
    args: Mapping[str, Any]
    installed: Mapping[str, str]
    names_all: bool = (
        False  # its log names every variable that it sees: the simulated engine's does
    )


async def prove_launch(launched: LaunchToProve, info: Mapping[str, Any]) -> ConfigurationProved:
    """What took effect, from /server_info and this host's files; the host's fingerprint is left
    empty.
    """
    shown = await asyncio.to_thread(_gather_nccl_evidence, launched)
    proved = effective_args.build_proof(launched.args, launched.spec.engine.env, info, shown)
    return effective_args.add_versions(proved, await asyncio.to_thread(_versions, launched, shown))


def _gather_nccl_evidence(launched: LaunchToProve) -> NcclEvidence:
    engine, witness = launched.spec.engine, launched.log.name == WITNESS_LOG
    reader = NcclReader()
    for line in nccl_files.read_nccl_lines(launched.log, witness=witness):
        reader.feed(line)
    facts, installed, ranks = (
        reader.facts(),
        installed_versions.nccl_package_version(launched.installed),
        engine.gpus * max(1, engine.gang.nodes),
    )
    in_container = bool(engine.container.image)  # its files are not this host's
    release = Release.read(facts.version or installed)
    dumps = nccl_files.read_inspector_dumps(engine.env, launched.log.parent)
    return NcclEvidence(
        facts=facts,
        configurations=()
        if in_container or ranks < 2
        else nccl_files.read_nccl_configurations(engine.env, release, str(Path.home())),
        libraries=nccl_files.find_loaded_libraries(
            f"{launched.spec.trial_id}/{launched.spec.attempt}"
        )
        if ranks > 1
        else (),
        installed=installed,
        ranks=ranks,
        proof=engine.proof,
        witness=witness,
        names_all=launched.names_all,
        inspected=tuple(row for text in dumps for row in read_inspector(text)),
    )


def _versions(launched: LaunchToProve, shown: NcclEvidence) -> dict[str, str]:
    """What is installed, and what can be told apart from it: CUDA, the driver, the path of the
    loaded NCCL.
    """
    found = {
        "cuda": installed_versions.cuda_version(launched.installed),
        "nccl_library": ", ".join(shown.libraries),
    }
    found["driver"] = installed_versions.driver_version() if launched.spec.engine.gpus else ""
    return {**launched.installed, **{name: value for name, value in found.items() if value}}
