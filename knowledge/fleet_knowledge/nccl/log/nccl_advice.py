"""Owns what is worth telling about NCCL's lines beside failures: peer access that is off, missing
log parts, advice. Reads no line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fleet_knowledge.nccl.log.nccl_facts import NcclAdvice, NcclFacts
from fleet_knowledge.nccl.log.transports import container_bridges


def add_advice(facts: NcclFacts, seen: frozenset[str]) -> NcclFacts:
    """`facts` with its notes; `seen` names single lines that were there: p2p_off, iommu,
    numa_balancing.
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
            message = f"{through_host} channels go through host memory, the others directly: not all GPUs reach each other"
            yield NcclAdvice(
                "p2p_partly_off",
                message,
                "Compare this host only with others of the same topology; NCCL_P2P_LEVEL sets how far P2P reaches.",
            )
        return
    if not was_logged and not through_host:
        return
    channels = f" with {facts.coll_channels} channels" if facts.coll_channels else ""
    if asked:
        yield NcclAdvice(
            "p2p_off",
            f"GPU peer-to-peer is off as the job asks: collectives go through host memory{channels}",
        )
        return
    message = f"GPU peer-to-peer is off (driver, IOMMU/ACS or consumer cards): all-reduce goes through host memory{channels}"
    yield NcclAdvice(
        "p2p_off",
        message,
        "Compare this host only with others of the same transport; on PCIe boxes try NCCL_MIN_NCHANNELS=8 (NCCL_MIN_CTAS from 2.17).",
    )


def _iommu(was_logged: bool) -> Iterator[NcclAdvice]:
    if was_logged:
        message = "iommu=pt missing on the kernel command line (RCCL's advice, no error)"
        yield NcclAdvice(
            "iommu_pt_missing",
            message,
            "Add iommu=pt to the kernel command line of AMD hosts: without it collectives can be slow or hang.",
        )


def _numa(was_logged: bool) -> Iterator[NcclAdvice]:
    if was_logged:
        message = "the kernel balances NUMA memory by itself: collectives vary from run to run (RCCL's advice, no error)"
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
        message = f"docker bridge interfaces are candidates for the socket network: {', '.join(found[:8])}"
        yield NcclAdvice(
            "bridge_interfaces",
            message,
            "Set NCCL_SOCKET_IFNAME for multi-node: other hosts cannot be reached over them.",
        )


def _tuning(facts: NcclFacts) -> Iterator[NcclAdvice]:
    if facts.info_lines and not facts.tuning and facts.is_complete and facts.failure is None:
        message = "no line tells algorithm and protocol: the log leaves them out, or SGLang's own all-reduce takes every message"
        yield NcclAdvice("no_tuning_lines", message, "add NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING")


def _versions(facts: NcclFacts) -> Iterator[NcclAdvice]:
    plain = dict.fromkeys(version.split("+")[0].split("-")[0] for version in facts.versions)
    if len(plain) > 1:
        message = f"several versions are loaded: {', '.join(plain)} (PyTorch's and the one that SGLang loads itself)"
        yield NcclAdvice(
            "nccl_versions_differ",
            message,
            "SGLANG_NCCL_SO_PATH or LD_LIBRARY_PATH names the second one; settings must be legal for both.",
        )
