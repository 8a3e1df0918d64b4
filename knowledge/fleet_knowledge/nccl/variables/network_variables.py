"""Owns the rows of NCCL's variables about networks: sockets, InfiniBand, GPU Direct RDMA, NICs. Decides nothing."""

from __future__ import annotations

from fleet_knowledge.nccl.variables.value_types import (
    LevelValue,
    NamesValue,
    NumberValue,
    PrefixesValue,
    TextValue,
)
from fleet_knowledge.nccl.variables.variable import NEVER, NcclVariable
from fleet_knowledge.release import Between

_FLAG = NumberValue(choices=(0, 1))
_SOCKET = "data goes over sockets"
_IB = "InfiniBand or RoCE devices are found"
_NICS = "a network device is found"
_MULTI = "the server spans hosts"
_RETRY = "a connection is refused or times out"

_SOCKETS = (
    NcclVariable(
        "NCCL_SOCKET_IFNAME",
        PrefixesValue("interface"),
        "interfaces for sockets and for meeting",
        always_read=True,
        note="`eth1` also means eth10; write `=eth1`.",
    ),
    NcclVariable("NCCL_SOCKET_FAMILY", NamesValue(("AF_INET", "AF_INET6"), cased=True), "IPv4 or IPv6", always_read=True),
    NcclVariable("NCCL_SOCKET_MAGIC", NumberValue(low=0), "word that keeps jobs apart", exists=Between("2.30.7"), read_when=_SOCKET),
    NcclVariable("NCCL_SOCKET_RETRY_CNT", NumberValue(low=1), "retries of a connection", "34", exists=Between("2.24"), read_when=_RETRY),
    NcclVariable(
        "NCCL_SOCKET_RETRY_SLEEP_MSEC", NumberValue(low=1, unit="ms"), "pause before a retry", "100", exists=Between("2.24"), read_when=_RETRY
    ),
    NcclVariable(
        "NCCL_SOCKET_POLL_TIMEOUT_MSEC", NumberValue(low=0, unit="ms"), "poll while meeting", "0", exists=Between("2.28"), read_when=_SOCKET
    ),
    NcclVariable("NCCL_SOCKET_NTHREADS", NumberValue(low=1, high=16), "threads of a connection", exists=Between("2.4.8"), read_when=_SOCKET),
    NcclVariable(
        "NCCL_NSOCKS_PERTHREAD",
        NumberValue(low=1),
        "sockets of a thread",
        exists=Between("2.4.8"),
        read_when=_SOCKET,
        note="Times NCCL_SOCKET_NTHREADS at most 64.",
    ),
)
_CHOICE = (
    NcclVariable("NCCL_NET", TextValue("IB, Socket or a plug-in's network"), "the network", exists=Between("2.10"), logged=NEVER),
    NcclVariable("NCCL_CROSS_NIC", NumberValue(choices=(0, 1, 2)), "rings over different NICs", "2", read_when=_NICS),
    NcclVariable("NCCL_NETDEVS_POLICY", TextValue("AUTO, MAX:N or ALL"), "NICs of a GPU", "AUTO", exists=Between("2.28"), read_when=_NICS),
    NcclVariable("NCCL_NET_MERGE_POLICY", NamesValue(("ALL", "RAIL")), "which NICs are merged", "ALL", exists=Between("2.30.5"), read_when=_NICS),
    NcclVariable(
        "NCCL_NET_GDR_LEVEL",
        LevelValue(("LOC", "PIX", "PXB", "PHB", "SYS")),
        "greatest distance for GPU Direct RDMA",
        exists=Between("2.3.4"),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_IB_GDR_LEVEL",
        LevelValue(("LOC", "PIX", "PXB", "PHB", "SYS")),
        "greatest distance for GPU Direct RDMA",
        exists=Between("2.3.4", "2.3.99"),
        replaced_by="NCCL_NET_GDR_LEVEL",
    ),
    NcclVariable(
        "NCCL_NET_GDR_C2C",
        _FLAG,
        "GPU Direct RDMA by way of C2C",
        exists=Between("2.26"),
        defaults=((Between("2.26", "2.26.99"), "0"), (Between("2.27"), "1")),
        read_when=_NICS,
    ),
    NcclVariable("NCCL_NET_GDR_READ", _FLAG, "GPU Direct RDMA for sending", read_when=_NICS, note="1 is the default with NVLink, else 0."),
    NcclVariable("NCCL_NET_SHARED_BUFFERS", _FLAG, "one pool for sends between hosts", "1", exists=Between("2.8"), read_when=_MULTI),
    NcclVariable("NCCL_NET_SHARED_COMMS", _FLAG, "share connections with PXN", "1", exists=Between("2.12"), read_when=_MULTI),
    NcclVariable("NCCL_DMABUF_ENABLE", _FLAG, "GPU Direct RDMA by dma-buf", "1", exists=Between("2.13"), always_read=True),
    NcclVariable("NCCL_PXN_DISABLE", _FLAG, "no NIC by way of another GPU", "0", exists=Between("2.12"), read_when=_NICS),
    NcclVariable(
        "NCCL_PXN_C2C",
        _FLAG,
        "PXN by way of C2C",
        exists=Between("2.27"),
        defaults=((Between("2.27", "2.27.99"), "0"), (Between("2.28"), "1")),
        read_when=_NICS,
    ),
    NcclVariable("NCCL_P2P_PXN_LEVEL", NumberValue(choices=(0, 1, 2)), "when sends use PXN", "2", exists=Between("2.12"), read_when=_NICS),
    NcclVariable(
        "NCCL_P2P_NET_CHUNKSIZE",
        NumberValue(low=1, unit="bytes"),
        "message of a send between hosts",
        "131072",
        exists=Between("2.14"),
        read_when=_MULTI,
    ),
    NcclVariable("NCCL_IGNORE_NET_MISMATCH", _FLAG, "unequal NICs are no error", "1", exists=Between("2.30"), read_when=_MULTI),
    NcclVariable("NCCL_OOB_NET_ENABLE", _FLAG, "meet over the fast network", "0", exists=Between("2.23"), always_read=True),
    NcclVariable(
        "NCCL_OOB_NET_IFNAME",
        PrefixesValue("device", fields=2),
        "devices for meeting",
        exists=Between("2.23"),
        read_when="NCCL_OOB_NET_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_UID_STAGGER_RATE", NumberValue(low=1), "ranks that meet in a second", "7000", exists=Between("2.23"), read_when="many ranks meet"
    ),
    NcclVariable(
        "NCCL_UID_STAGGER_THRESHOLD",
        NumberValue(low=1),
        "ranks above which they meet in turn",
        "256",
        exists=Between("2.23"),
        read_when="many ranks meet",
    ),
)
_INFINIBAND = (
    NcclVariable("NCCL_IB_DISABLE", _FLAG, "no InfiniBand or RoCE", "0", read_when="NCCL's own InfiniBand network is tried"),
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
        "wait for an answer, 4.096 us x 2^N",
        defaults=((Between("", "2.13.99"), "14"), (Between("2.14", "2.22.99"), "18"), (Between("2.23"), "20")),
        read_when=_IB,
        note="0, or 32 and more, waits for ever.",
    ),
    NcclVariable("NCCL_IB_RETRY_CNT", NumberValue(low=0, high=7), "retries", "7", exists=Between("2.1.15"), read_when=_IB),
    NcclVariable(
        "NCCL_IB_GID_INDEX",
        NumberValue(low=-1),
        "address index of RoCE",
        exists=Between("2.1.4"),
        defaults=((Between("", "2.20.99"), "0"), (Between("2.21"), "-1")),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_ADDR_FAMILY",
        NamesValue(("AF_INET", "AF_INET6"), cased=True),
        "family of the address",
        "AF_INET",
        exists=Between("2.21"),
        read_when=_IB,
    ),
    NcclVariable("NCCL_IB_ADDR_RANGE", TextValue("a CIDR range"), "range of the address", exists=Between("2.21"), read_when=_IB),
    NcclVariable("NCCL_IB_ROCE_VERSION_NUM", NumberValue(choices=(1, 2)), "RoCE version", "2", exists=Between("2.21"), read_when=_IB),
    NcclVariable("NCCL_IB_SL", NumberValue(low=-1, high=15), "service level", exists=Between("2.1.4"), read_when=_IB),
    NcclVariable("NCCL_IB_TC", NumberValue(low=-1, high=255), "traffic class", exists=Between("2.1.15"), read_when=_IB),
    NcclVariable("NCCL_IB_FIFO_TC", NumberValue(low=-1, high=255), "traffic class of control messages", exists=Between("2.22.3"), read_when=_IB),
    NcclVariable("NCCL_IB_RETURN_ASYNC_EVENTS", _FLAG, "stop at fatal events", "1", exists=Between("2.23"), read_when=_IB),
    NcclVariable(
        "NCCL_IB_AR_THRESHOLD",
        NumberValue(low=-2, unit="bytes"),
        "least message of adaptive routing",
        "8192",
        exists=Between("2.6"),
        read_when=_IB,
    ),
    NcclVariable("NCCL_IB_OOO_RQ", _FLAG, "receives out of order", "0", exists=Between("2.30"), read_when=_IB),
    NcclVariable(
        "NCCL_IB_QPS_PER_CONNECTION", NumberValue(low=1, high=128), "queue pairs of a connection", "1", exists=Between("2.10"), read_when=_IB
    ),
    NcclVariable(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        _FLAG,
        "each message on all queue pairs",
        exists=Between("2.18"),
        defaults=((Between("2.18", "2.19.99"), "1"), (Between("2.20"), "0")),
        read_when=_IB,
    ),
    NcclVariable(
        "NCCL_IB_CUDA_SUPPORT",
        _FLAG,
        "GPU Direct RDMA",
        exists=Between("", "2.3.99"),
        replaced_by="NCCL_NET_GDR_LEVEL",
    ),
    NcclVariable("NCCL_IB_PCI_RELAXED_ORDERING", NumberValue(choices=(0, 1, 2)), "relaxed ordering", "2", exists=Between("2.12"), read_when=_IB),
    NcclVariable(
        "NCCL_IB_ADAPTIVE_ROUTING",
        _FLAG,
        "adaptive routing",
        exists=Between("2.16"),
        read_when=_IB,
        note="1 is the default on InfiniBand, 0 on RoCE.",
    ),
    NcclVariable("NCCL_IB_ECE_ENABLE", _FLAG, "enhanced connections", "1", exists=Between("2.23"), read_when=_IB),
    NcclVariable("NCCL_IB_MERGE_NICS", _FLAG, "two ports as one device", "1", exists=Between("2.20"), read_when=_IB),
)
NETWORK_VARIABLES = (*_SOCKETS, *_CHOICE, *_INFINIBAND)
