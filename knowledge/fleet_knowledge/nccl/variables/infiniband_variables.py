"""Lists NCCL's variables for InfiniBand and RoCE."""

from __future__ import annotations

from fleet_knowledge.nccl.variables.value_types import (
    NamesValue,
    NumberValue,
    PrefixesValue,
    TextValue,
)
from fleet_knowledge.nccl.variables.variable import NcclVariable
from fleet_knowledge.release import VersionRange

_FLAG = NumberValue(choices=(0, 1))
_IB = "InfiniBand or RoCE devices are found"

INFINIBAND_VARIABLES = (
    NcclVariable(
        "NCCL_IB_DISABLE",
        _FLAG,
        "disables InfiniBand and RoCE",
        "0",
        read_when="NCCL's own InfiniBand network is tried",
    ),
    NcclVariable(
        "NCCL_IB_HCA",
        PrefixesValue("device", fields=4),
        "InfiniBand devices",
        read_when=_IB,
        note="`mlx5_1` also means mlx5_10; write `=mlx5_1`.",
    ),
    NcclVariable(
        "NCCL_IB_TIMEOUT",
        NumberValue(low=1, high=31),
        "timeout of 4.096 us x 2^N",
        defaults=(
            (VersionRange("", "2.13.99"), "14"),
            (VersionRange("2.14", "2.22.99"), "18"),
            (VersionRange("2.23"), "20"),
        ),
        read_when=_IB,
        note="0, or 32 and more, waits without a limit.",
    ),
    NcclVariable(
        "NCCL_IB_RETRY_CNT",
        NumberValue(low=0, high=7),
        "retries",
        "7",
        exists=VersionRange("2.1.15"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_GID_INDEX",
        NumberValue(low=-1),
        "GID index of RoCE",
        exists=VersionRange("2.1.4"),
        defaults=((VersionRange("", "2.20.99"), "0"), (VersionRange("2.21"), "-1")),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_ADDR_FAMILY",
        NamesValue(("AF_INET", "AF_INET6"), cased=True),
        "family of the address",
        "AF_INET",
        exists=VersionRange("2.21"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_ADDR_RANGE",
        TextValue("a CIDR range"),
        "range of the address",
        exists=VersionRange("2.21"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_ROCE_VERSION_NUM",
        NumberValue(choices=(1, 2)),
        "RoCE version",
        "2",
        exists=VersionRange("2.21"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_SL",
        NumberValue(low=-1, high=15),
        "service level",
        exists=VersionRange("2.1.4"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_TC",
        NumberValue(low=-1, high=255),
        "traffic class",
        exists=VersionRange("2.1.15"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_FIFO_TC",
        NumberValue(low=-1, high=255),
        "traffic class of control messages",
        exists=VersionRange("2.22.3"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_RETURN_ASYNC_EVENTS",
        _FLAG,
        "stops at fatal events",
        "1",
        exists=VersionRange("2.23"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_AR_THRESHOLD",
        NumberValue(low=-2, unit="bytes"),
        "smallest message that uses adaptive routing",
        "8192",
        exists=VersionRange("2.6"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_OOO_RQ",
        _FLAG,
        "allows receives out of order",
        "0",
        exists=VersionRange("2.30"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_QPS_PER_CONNECTION",
        NumberValue(low=1, high=128),
        "queue pairs per connection",
        "1",
        exists=VersionRange("2.10"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        _FLAG,
        "splits each message over all queue pairs",
        exists=VersionRange("2.18"),
        defaults=((VersionRange("2.18", "2.19.99"), "1"), (VersionRange("2.20"), "0")),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_CUDA_SUPPORT",
        _FLAG,
        "GPU Direct RDMA",
        exists=VersionRange("", "2.3.99"),
        replaced_by="NCCL_NET_GDR_LEVEL",
    ),
    NcclVariable(
        "NCCL_IB_PCI_RELAXED_ORDERING",
        NumberValue(choices=(0, 1, 2)),
        "relaxed ordering",
        "2",
        exists=VersionRange("2.12"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_ADAPTIVE_ROUTING",
        _FLAG,
        "adaptive routing",
        exists=VersionRange("2.16"),
        read_when=_IB,
        note="1 is the default on InfiniBand, 0 on RoCE.",
    ),
    NcclVariable(
        "NCCL_IB_ECE_ENABLE",
        _FLAG,
        "enhanced connection establishment",
        "1",
        exists=VersionRange("2.23"),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_MERGE_NICS",
        _FLAG,
        "merges two ports into one device",
        "1",
        exists=VersionRange("2.20"),
        read_when=_IB,
    ),
)
