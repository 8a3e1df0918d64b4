"""Derives advice from NCCL's log that is not about failures: disabled peer access, missing log
parts, host settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fleet_knowledge.nccl.log.nccl_facts import NcclAdvice, NcclFacts
from fleet_knowledge.nccl.log.transports import container_bridges


def add_advice(facts: NcclFacts, seen: frozenset[str]) -> NcclFacts:
    """Return `facts` with its advice in `notes`.

    `seen` names the kinds of single lines that the log contains: p2p_off, iommu, numa_balancing.
    """
    advice = (*_iommu("iommu" in seen), *_numa("numa_balancing" in seen))
    notes = (
        *_p2p(facts, "p2p_off" in seen),
        *advice,
        *_bridges(facts),
        *_tuning(facts),
        *_versions(facts),
    )
    return replace(facts, notes=notes)


def _p2p(facts: NcclFacts, was_logged: bool) -> Iterator[NcclAdvice]:
    asked = "1" in facts.settings.get("NCCL_P2P_DISABLE", ()) or "LOC" in facts.settings.get(
        "NCCL_P2P_LEVEL", ()
    )
    through_host = facts.transport.get("SHM", 0)
    if facts.transport.get("P2P", 0) and not was_logged:
        if through_host:
            message = (
                f"{through_host} channels go through host memory and the others directly: "
                "some GPUs cannot access each other's memory"
            )
            yield NcclAdvice(
                "p2p_partly_off",
                message,
                "Compare this host only with hosts of the same topology; NCCL_P2P_LEVEL sets the "
                "distance at which P2P is used.",
            )
        return
    if not was_logged and not through_host:
        return
    channels = f" with {facts.coll_channels} channels" if facts.coll_channels else ""
    if asked:
        yield NcclAdvice(
            "p2p_off",
            "GPU peer-to-peer is off, as the job requests: collectives go through host "
            f"memory{channels}",
        )
        return
    message = (
        "GPU peer-to-peer is off (driver, IOMMU/ACS or consumer cards): all-reduce goes through "
        f"host memory{channels}"
    )
    yield NcclAdvice(
        "p2p_off",
        message,
        "Compare this host only with hosts of the same transport; on PCIe hosts try "
        "NCCL_MIN_NCHANNELS=8 (NCCL_MIN_CTAS from 2.17).",
    )


def _iommu(was_logged: bool) -> Iterator[NcclAdvice]:
    if was_logged:
        message = "iommu=pt is missing on the kernel command line (RCCL's advice, not an error)"
        yield NcclAdvice(
            "iommu_pt_missing",
            message,
            "Add iommu=pt to the kernel command line of AMD hosts: without it collectives can be "
            "slow or hang.",
        )


def _numa(was_logged: bool) -> Iterator[NcclAdvice]:
    if was_logged:
        message = (
            "the kernel balances NUMA memory automatically: collectives vary from run to run "
            "(RCCL's advice, not an error)"
        )
        yield NcclAdvice(
            "numa_balancing_on",
            message,
            "Set kernel.numa_balancing=0 on every host of a comparison.",
        )


def _bridges(facts: NcclFacts) -> Iterator[NcclAdvice]:
    found = container_bridges(
        dict.fromkeys((*facts.interfaces, *((facts.bootstrap,) if facts.bootstrap else ())))
    )
    if found:
        message = (
            "docker bridge interfaces are candidates for the socket network: "
            f"{', '.join(found[:8])}"
        )
        yield NcclAdvice(
            "bridge_interfaces",
            message,
            "Set NCCL_SOCKET_IFNAME for servers over several hosts: bridges do not reach them.",
        )


def _tuning(facts: NcclFacts) -> Iterator[NcclAdvice]:
    if facts.info_lines and not facts.tuning and facts.is_complete and facts.failure is None:
        message = (
            "no line names algorithm and protocol: the log leaves them out, or SGLang's own "
            "all-reduce takes every message"
        )
        yield NcclAdvice("no_tuning_lines", message, "add NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING")


def _versions(facts: NcclFacts) -> Iterator[NcclAdvice]:
    plain = dict.fromkeys(version.split("+")[0].split("-")[0] for version in facts.versions)
    if len(plain) > 1:
        message = (
            f"several versions of NCCL are loaded: {', '.join(plain)} (PyTorch's and the one that "
            "SGLang loads itself)"
        )
        yield NcclAdvice(
            "nccl_versions_differ",
            message,
            "SGLANG_NCCL_SO_PATH or LD_LIBRARY_PATH selects the second one; settings must be valid "
            "for both.",
        )
