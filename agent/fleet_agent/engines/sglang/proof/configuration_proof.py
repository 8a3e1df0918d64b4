"""Collects the proof of a launch from this host: NCCL's log and files, the loaded NCCL library, the
installed versions.
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
from fleet_knowledge.nccl.nccl_conf import NcclConfFile
from fleet_knowledge.release import Release
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import TrialSpec

WITNESS_LOG = "witness.log"  # server log of the witness launch


@dataclass(frozen=True, slots=True)
class LaunchToProve:
    """Holds what the proof of a launch needs.

    `args`: the requested arguments, as they were passed.
    `installed`: the versions that `read_installed_versions` returned.
    `names_all`: True if the server's log names every NCCL variable that the server sees. The log of
      the simulated engine does this.
    """

    spec: TrialSpec
    log: Path
    args: Mapping[str, Any]
    installed: Mapping[str, str]
    names_all: bool = False


async def prove_launch(launched: LaunchToProve, info: Mapping[str, Any]) -> ConfigurationProved:
    """Return the configuration that took effect, from /server_info and this host's files.

    The host's fingerprint is left empty.
    """
    shown = await asyncio.to_thread(_gather_nccl_evidence, launched)
    proved = effective_args.build_proof(launched.args, launched.spec.engine.env, info, shown)
    return effective_args.add_versions(proved, await asyncio.to_thread(_versions, launched, shown))


def _gather_nccl_evidence(launched: LaunchToProve) -> NcclEvidence:
    engine, witness = launched.spec.engine, launched.log.name == WITNESS_LOG
    reader = NcclReader()
    for line in nccl_files.read_nccl_lines(launched.log, witness=witness):
        reader.feed(line)
    facts = reader.facts()
    installed = installed_versions.nccl_package_version(launched.installed)
    ranks = engine.gpus * max(1, engine.gang.nodes)
    configurations: tuple[NcclConfFile, ...] = ()
    if ranks > 1 and not engine.container.image:  # a container does not see this host's files
        release = Release.parse(facts.version or installed)
        home = str(Path.home())
        configurations = nccl_files.read_nccl_configurations(engine.env, release, home)
    libraries: tuple[str, ...] = ()
    if ranks > 1:
        token = f"{launched.spec.trial_id}/{launched.spec.attempt}"
        libraries = nccl_files.find_loaded_libraries(token)
    dumps = nccl_files.read_inspector_dumps(engine.env, launched.log.parent)
    return NcclEvidence(
        facts=facts,
        configurations=configurations,
        libraries=libraries,
        installed=installed,
        ranks=ranks,
        proof=engine.proof,
        witness=witness,
        names_all=launched.names_all,
        inspected=tuple(row for text in dumps for row in read_inspector(text)),
    )


def _versions(launched: LaunchToProve, shown: NcclEvidence) -> dict[str, str]:
    """Return the installed versions. CUDA, the driver and the path of the loaded NCCL are added if
    they are known.
    """
    found = {
        "cuda": installed_versions.cuda_version(launched.installed),
        "nccl_library": ", ".join(shown.libraries),
    }
    found["driver"] = installed_versions.driver_version() if launched.spec.engine.gpus else ""
    return {**launched.installed, **{name: value for name, value in found.items() if value}}
