"""Lists NCCL's variables for networks: sockets, choice of network, GPU Direct RDMA and NICs.
`NETWORK_VARIABLES` includes the variables for InfiniBand.
"""

from __future__ import annotations

from fleet_knowledge.nccl.variables.infiniband_variables import INFINIBAND_VARIABLES
from fleet_knowledge.nccl.variables.value_types import (
    LevelValue,
    NamesValue,
    NumberValue,
    PrefixesValue,
    TextValue,
)
from fleet_knowledge.nccl.variables.variable import NEVER, NcclVariable
from fleet_knowledge.release import VersionRange

_FLAG = NumberValue(choices=(0, 1))
_SOCKET = "data goes over sockets"
_NICS = "a network device is found"
_MULTI = "the server spans hosts"
_RETRY = "a connection is refused or times out"

_SOCKETS = (
    NcclVariable(
        "NCCL_SOCKET_IFNAME",
        PrefixesValue("interface"),
        "interfaces for sockets and bootstrap",
        always_read=True,
        note="`eth1` also means eth10; write `=eth1`.",
    ),
    NcclVariable(
        "NCCL_SOCKET_FAMILY",
        NamesValue(("AF_INET", "AF_INET6"), cased=True),
        "IPv4 or IPv6",
        always_read=True,
    ),
    NcclVariable(
        "NCCL_SOCKET_MAGIC",
        NumberValue(low=0),
        "number that keeps the sockets of different jobs apart",
        exists=VersionRange("2.30.7"),
        read_when=_SOCKET,
    ),
    NcclVariable(
        "NCCL_SOCKET_RETRY_CNT",
        NumberValue(low=1),
        "retries per connection",
        "34",
        exists=VersionRange("2.24"),
        read_when=_RETRY,
    ),
    NcclVariable(
        "NCCL_SOCKET_RETRY_SLEEP_MSEC",
        NumberValue(low=1, unit="ms"),
        "pause before each retry",
        "100",
        exists=VersionRange("2.24"),
        read_when=_RETRY,
    ),
    NcclVariable(
        "NCCL_SOCKET_POLL_TIMEOUT_MSEC",
        NumberValue(low=0, unit="ms"),
        "poll timeout during bootstrap",
        "0",
        exists=VersionRange("2.28"),
        read_when=_SOCKET,
    ),
    NcclVariable(
        "NCCL_SOCKET_NTHREADS",
        NumberValue(low=1, high=16),
        "threads per connection",
        exists=VersionRange("2.4.8"),
        read_when=_SOCKET,
    ),
    NcclVariable(
        "NCCL_NSOCKS_PERTHREAD",
        NumberValue(low=1),
        "sockets per thread",
        exists=VersionRange("2.4.8"),
        read_when=_SOCKET,
        note="The product with NCCL_SOCKET_NTHREADS must not exceed 64.",
    ),
)
_CHOICE = (
    NcclVariable(
        "NCCL_NET",
        TextValue("IB, Socket or a plug-in's network"),
        "network to use",
        exists=VersionRange("2.10"),
        logged=NEVER,
    ),
    NcclVariable(
        "NCCL_CROSS_NIC",
        NumberValue(choices=(0, 1, 2)),
        "whether rings may use different NICs",
        "2",
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_NETDEVS_POLICY",
        TextValue("AUTO, MAX:N or ALL"),
        "NICs per GPU",
        "AUTO",
        exists=VersionRange("2.28"),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_NET_MERGE_POLICY",
        NamesValue(("ALL", "RAIL")),
        "which NICs are merged",
        "ALL",
        exists=VersionRange("2.30.5"),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_NET_GDR_LEVEL",
        LevelValue(("LOC", "PIX", "PXB", "PHB", "SYS")),
        "largest distance for GPU Direct RDMA",
        exists=VersionRange("2.3.4"),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_IB_GDR_LEVEL",
        LevelValue(("LOC", "PIX", "PXB", "PHB", "SYS")),
        "largest distance for GPU Direct RDMA",
        exists=VersionRange("2.3.4", "2.3.99"),
        replaced_by="NCCL_NET_GDR_LEVEL",
    ),
    NcclVariable(
        "NCCL_NET_GDR_C2C",
        _FLAG,
        "GPU Direct RDMA over C2C",
        exists=VersionRange("2.26"),
        defaults=((VersionRange("2.26", "2.26.99"), "0"), (VersionRange("2.27"), "1")),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_NET_GDR_READ",
        _FLAG,
        "GPU Direct RDMA for sending",
        read_when=_NICS,
        note="1 is the default with NVLink, else 0.",
    ),
    NcclVariable(
        "NCCL_NET_SHARED_BUFFERS",
        _FLAG,
        "shares one buffer pool for sends between hosts",
        "1",
        exists=VersionRange("2.8"),
        read_when=_MULTI,
    ),
    NcclVariable(
        "NCCL_NET_SHARED_COMMS",
        _FLAG,
        "shares connections when PXN is used",
        "1",
        exists=VersionRange("2.12"),
        read_when=_MULTI,
    ),
    NcclVariable(
        "NCCL_DMABUF_ENABLE",
        _FLAG,
        "GPU Direct RDMA through dma-buf",
        "1",
        exists=VersionRange("2.13"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_PXN_DISABLE",
        _FLAG,
        "disables PXN, the use of a NIC through another GPU",
        "0",
        exists=VersionRange("2.12"),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_PXN_C2C",
        _FLAG,
        "PXN over C2C",
        exists=VersionRange("2.27"),
        defaults=((VersionRange("2.27", "2.27.99"), "0"), (VersionRange("2.28"), "1")),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_P2P_PXN_LEVEL",
        NumberValue(choices=(0, 1, 2)),
        "when sends use PXN",
        "2",
        exists=VersionRange("2.12"),
        read_when=_NICS,
    ),
    NcclVariable(
        "NCCL_P2P_NET_CHUNKSIZE",
        NumberValue(low=1, unit="bytes"),
        "chunk size of a send between hosts",
        "131072",
        exists=VersionRange("2.14"),
        read_when=_MULTI,
    ),
    NcclVariable(
        "NCCL_IGNORE_NET_MISMATCH",
        _FLAG,
        "accepts unequal NICs",
        "1",
        exists=VersionRange("2.30"),
        read_when=_MULTI,
    ),
    NcclVariable(
        "NCCL_OOB_NET_ENABLE",
        _FLAG,
        "bootstrap over the fast network",
        "0",
        exists=VersionRange("2.23"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_OOB_NET_IFNAME",
        PrefixesValue("device", fields=2),
        "devices for bootstrap",
        exists=VersionRange("2.23"),
        read_when="NCCL_OOB_NET_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_UID_STAGGER_RATE",
        NumberValue(low=1),
        "ranks per second that contact the root",
        "7000",
        exists=VersionRange("2.23"),
        read_when="many ranks start",
    ),
    NcclVariable(
        "NCCL_UID_STAGGER_THRESHOLD",
        NumberValue(low=1),
        "number of ranks above which their contact is staggered",
        "256",
        exists=VersionRange("2.23"),
        read_when="many ranks start",
    ),
)
NETWORK_VARIABLES = (*_SOCKETS, *_CHOICE, *INFINIBAND_VARIABLES)
