"""Owns the rows of NCCL's variables about files, log, plug-ins, checks and the multi-node NVLink
domain. Decides nothing.
"""

from __future__ import annotations

from fleet_knowledge.nccl.variables.value_types import (
    FilePathValue,
    NamesValue,
    NumberValue,
    TextValue,
)
from fleet_knowledge.nccl.variables.variable import NEVER, NcclVariable
from fleet_knowledge.release import VersionRange

_FLAG = NumberValue(choices=(0, 1))
SUBSYSTEMS = (
    "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG",
    "PROFILE", "RAS", "DESTROY", "ALL",
)  # fmt: skip
"""Parts of the log that NCCL_DEBUG_SUBSYS can name."""
_LOG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
_MULTI = "the server spans hosts"
_MNNVL = "GPUs are in one NVLink domain over several hosts"

_LOG = (
    NcclVariable(
        "NCCL_DEBUG",
        NamesValue(("VERSION", "WARN", "INFO", "TRACE", "ABORT", "NONE")),
        "what NCCL logs",
        logged=NEVER,
        note="INFO and TRACE cost time in a measured run.",
    ),
    NcclVariable(
        "NCCL_DEBUG_SUBSYS",
        NamesValue(SUBSYSTEMS, separator=",", excludes=True),
        "parts of the INFO log",
        default="INIT,BOOTSTRAP,ENV",
        exists=VersionRange("2.3.4"),
        logged=NEVER,
        note="Algorithm and protocol are logged with TUNING, which must be added.",
    ),
    NcclVariable(
        "NCCL_DEBUG_FILE",
        FilePathValue(),
        "where the log goes; %h host, %p process",
        exists=VersionRange("2.2.12"),
        logged=NEVER,
        note="Keeps NCCL's lines out of the server's log.",
    ),
    NcclVariable(
        "NCCL_DEBUG_TIMESTAMP_FORMAT",
        TextValue("a strftime format"),
        "stamp of log lines",
        exists=VersionRange("2.26"),
        logged=NEVER,
    ),
    NcclVariable(
        "NCCL_DEBUG_TIMESTAMP_LEVELS",
        NamesValue((*_LOG_LEVELS, "ALL"), separator=",", excludes=True),
        "which lines get a stamp",
        default="WARN",
        exists=VersionRange("2.26"),
        logged=NEVER,
    ),
    NcclVariable(
        "NCCL_WARN_ENABLE_DEBUG_INFO",
        _FLAG,
        "INFO after the first warning",
        "0",
        logged=NEVER,
        source="src/debug.cc 2.19 - 2.30",
    ),
    NcclVariable(
        "NCCL_SET_THREAD_NAME",
        _FLAG,
        "names of NCCL's threads",
        "0",
        exists=VersionRange("2.12"),
        read_when="a helper thread starts",
    ),
)
_FILES = (
    NcclVariable(
        "NCCL_CONF_FILE",
        FilePathValue(),
        "the user's file of variables",
        exists=VersionRange("2.23"),
        logged=NEVER,
        note="In place of ~/.nccl.conf. A variable of the process wins over it, it wins over /etc/nccl.conf.",
    ),
    NcclVariable(
        "NCCL_TOPO_FILE",
        FilePathValue(),
        "topology from a file",
        exists=VersionRange("2.6"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_TOPO_DUMP_FILE",
        FilePathValue(),
        "where the topology is written",
        exists=VersionRange("2.6"),
        read_when="on rank 0",
    ),
    NcclVariable(
        "NCCL_HOSTID",
        TextValue(),
        "what tells hosts apart",
        always_read=True,
        source="src/misc/utils.cc 2.18 - 2.30",
    ),
    NcclVariable(
        "NCCL_IGNORE_CPU_AFFINITY",
        _FLAG,
        "the GPU's CPUs instead of the job's",
        "0",
        exists=VersionRange("2.4.6"),
        always_read=True,
    ),
)
_PLUGINS = (
    NcclVariable(
        "NCCL_TUNER_PLUGIN",
        FilePathValue(plugin=True),
        "library that chooses algorithm and protocol",
        exists=VersionRange("2.19"),
        read_when="NCCL looks for a tuner",
        note="Can overrule NCCL_ALGO and NCCL_PROTO.",
    ),
    NcclVariable(
        "NCCL_NET_PLUGIN",
        FilePathValue(plugin=True),
        "library of the network",
        exists=VersionRange("2.11"),
        read_when="NCCL looks for a network",
        note="Some set NCCL_PROTO or NCCL_BUFFSIZE in the process.",
    ),
    NcclVariable(
        "NCCL_PROFILER_PLUGIN",
        FilePathValue(plugin=True),
        "library that observes, as the inspector",
        exists=VersionRange("2.23"),
        read_when="NCCL loads it",
    ),
    NcclVariable(
        "NCCL_ENV_PLUGIN",
        FilePathValue(plugin=True),
        "library that answers for variables",
        exists=VersionRange("2.28"),
        read_when="NCCL loads it",
    ),
    NcclVariable(
        "NCCL_GIN_PLUGIN",
        FilePathValue(plugin=True),
        "library for GPU-initiated networking",
        exists=VersionRange("2.29.7"),
        read_when="NCCL loads it",
        source="src/plugin/gin.cc",
    ),
)
_CHECKS = (
    NcclVariable(
        "NCCL_CHECK_POINTERS",
        _FLAG,
        "check pointers of each call",
        default="0",
        exists=VersionRange("2.2.12"),
        deprecated=VersionRange("2.29.7"),
        replaced_by="NCCL_CHECK_MODE",
        always_read=True,
    ),
    NcclVariable(
        "NCCL_CHECK_MODE",
        NamesValue(("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL")),
        "check arguments",
        "DEFAULT",
        exists=VersionRange("2.29.7"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_CHECKS_DISABLE",
        _FLAG,
        "no checks",
        "0",
        deprecated=VersionRange("2.2.12"),
        replaced_by="NCCL_CHECK_POINTERS",
        read_when="before 2.2.12",
    ),
    NcclVariable(
        "NCCL_COMM_BLOCKING",
        _FLAG,
        "calls may block",
        exists=VersionRange("2.14"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_COMM_ID",
        TextValue("HOST:PORT"),
        "where ranks meet",
        read_when="the program makes no identifier itself",
        source="src/bootstrap.cc",
    ),
    NcclVariable(
        "NCCL_SET_STACK_SIZE",
        _FLAG,
        "stack of kernels at its largest",
        "0",
        exists=VersionRange("2.9"),
        read_when="a kernel needs a local stack",
    ),
    NcclVariable(
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        _FLAG,
        "order of calls between communicators",
        "0",
        exists=VersionRange("2.26"),
        read_when="a collective is launched",
    ),
    NcclVariable(
        "NCCL_LAUNCH_RACE_FATAL",
        _FLAG,
        "racing launches are an error",
        "1",
        exists=VersionRange("2.26"),
        read_when="NCCL_LAUNCH_ORDER_IMPLICIT is 1",
    ),
    NcclVariable(
        "NCCL_MULTI_RANK_GPU_ENABLE",
        _FLAG,
        "several ranks on one GPU",
        "0",
        exists=VersionRange("2.30"),
        read_when="two ranks share a GPU",
    ),
    NcclVariable(
        "NCCL_RAS_ENABLE",
        _FLAG,
        "service that tells the state of jobs",
        "1",
        exists=VersionRange("2.24"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_RAS_ADDR",
        TextValue("HOST:PORT"),
        "where that service listens",
        "localhost:28028",
        exists=VersionRange("2.24"),
        read_when="NCCL_RAS_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_RAS_TIMEOUT_FACTOR",
        NumberValue(low=1),
        "factor of its timeouts",
        "1",
        exists=VersionRange("2.24"),
        read_when="NCCL_RAS_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_IPC_USE_ABSTRACT_SOCKET",
        _FLAG,
        "abstract sockets between processes",
        "1",
        exists=VersionRange("2.29"),
        read_when="cuMem handles are exchanged",
    ),
)
_MULTI_NODE = (
    NcclVariable(
        "NCCL_MNNVL_ENABLE",
        NumberValue(choices=(0, 1, 2)),
        "NVLink over several hosts",
        default="2",
        exists=VersionRange("2.21"),
        read_when=_MULTI,
        note="Needs NCCL_CUMEM_ENABLE=1. SGLang sets 1 itself over several hosts of such a domain from 0.5.18.",
    ),
    NcclVariable(
        "NCCL_MNNVL_UUID",
        NumberValue(),
        "identity of the domain",
        exists=VersionRange("2.25"),
        read_when=_MNNVL,
    ),
    NcclVariable(
        "NCCL_MNNVL_CLIQUE_ID",
        NumberValue(),
        "part of the domain",
        exists=VersionRange("2.25"),
        read_when=_MNNVL,
    ),
    NcclVariable(
        "NCCL_COLLNET_ENABLE",
        _FLAG,
        "in-network reduction",
        "0",
        exists=VersionRange("2.6"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_COLLNET_NODE_THRESHOLD",
        NumberValue(low=0),
        "least hosts for it",
        "2",
        exists=VersionRange("2.9.9"),
        read_when="NCCL_COLLNET_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_IGNORE_COLLNET_MISMATCH",
        _FLAG,
        "unequal devices for it",
        "0",
        exists=VersionRange("2.30"),
        read_when="NCCL_COLLNET_ENABLE is 1",
    ),
)
_REMOVED = (
    NcclVariable(
        "NCCL_SINGLE_RING_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "one ring below",
        exists=VersionRange("2.1", "2.2.99"),
        replaced_by="NCCL_ALGO",
    ),
    NcclVariable(
        "NCCL_LL_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "LL below",
        exists=VersionRange("2.1", "2.4.99"),
        replaced_by="NCCL_PROTO",
    ),
    NcclVariable(
        "NCCL_TREE_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "trees below",
        exists=VersionRange("2.4", "2.4.99"),
        replaced_by="NCCL_ALGO",
    ),
)
SYSTEM_VARIABLES = (*_LOG, *_FILES, *_PLUGINS, *_CHECKS, *_MULTI_NODE, *_REMOVED)
