"""Lists NCCL's variables for files, logging, plug-ins, checks and the multi-node NVLink domain."""

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
    "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL",
    "PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL",
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
        "subsystems in the INFO log",
        default="INIT,BOOTSTRAP,ENV",
        exists=VersionRange("2.3.4"),
        logged=NEVER,
        note="Algorithm and protocol are logged with TUNING, which must be added.",
    ),
    NcclVariable(
        "NCCL_DEBUG_FILE",
        FilePathValue(),
        "file for the log; %h is the host, %p the process",
        exists=VersionRange("2.2.12"),
        logged=NEVER,
        note="NCCL's lines then no longer appear in the server's log.",
    ),
    NcclVariable(
        "NCCL_DEBUG_TIMESTAMP_FORMAT",
        TextValue("a strftime format"),
        "time stamp format of log lines",
        exists=VersionRange("2.26"),
        logged=NEVER,
    ),
    NcclVariable(
        "NCCL_DEBUG_TIMESTAMP_LEVELS",
        NamesValue((*_LOG_LEVELS, "ALL"), separator=",", excludes=True),
        "levels whose lines get a time stamp",
        default="WARN",
        exists=VersionRange("2.26"),
        logged=NEVER,
    ),
    NcclVariable(
        "NCCL_WARN_ENABLE_DEBUG_INFO",
        _FLAG,
        "logs INFO lines after the first warning",
        "0",
        logged=NEVER,
        source="src/debug.cc 2.19 - 2.30",
    ),
    NcclVariable(
        "NCCL_SET_THREAD_NAME",
        _FLAG,
        "names NCCL's threads",
        "0",
        exists=VersionRange("2.12"),
        read_when="a helper thread starts",
    ),
)
_FILES = (
    NcclVariable(
        "NCCL_CONF_FILE",
        FilePathValue(),
        "the user's file with variables",
        exists=VersionRange("2.23"),
        logged=NEVER,
        note="Replaces ~/.nccl.conf. The process environment overrides it, and it overrides "
        "/etc/nccl.conf.",
    ),
    NcclVariable(
        "NCCL_TOPO_FILE",
        FilePathValue(),
        "file from which the topology is read",
        exists=VersionRange("2.6"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_TOPO_DUMP_FILE",
        FilePathValue(),
        "file to which the topology is written",
        exists=VersionRange("2.6"),
        read_when="the process is rank 0",
    ),
    NcclVariable(
        "NCCL_HOSTID",
        TextValue(),
        "identity of the host",
        always_read=True,
        source="src/misc/utils.cc 2.18 - 2.30",
    ),
    NcclVariable(
        "NCCL_IGNORE_CPU_AFFINITY",
        _FLAG,
        "uses the GPU's CPUs instead of the job's affinity",
        "0",
        exists=VersionRange("2.4.6"),
        always_read=True,
    ),
)
_PLUGINS = (
    NcclVariable(
        "NCCL_TUNER_PLUGIN",
        FilePathValue(plugin=True),
        "tuner library, which chooses algorithm and protocol",
        exists=VersionRange("2.19"),
        read_when="NCCL looks for a tuner",
        note="Can override NCCL_ALGO and NCCL_PROTO.",
    ),
    NcclVariable(
        "NCCL_NET_PLUGIN",
        FilePathValue(plugin=True),
        "network library",
        exists=VersionRange("2.11"),
        read_when="NCCL looks for a network",
        note="Some plug-ins set NCCL_PROTO or NCCL_BUFFSIZE in the process.",
    ),
    NcclVariable(
        "NCCL_PROFILER_PLUGIN",
        FilePathValue(plugin=True),
        "profiler library, such as the inspector",
        exists=VersionRange("2.23"),
        read_when="NCCL loads it",
    ),
    NcclVariable(
        "NCCL_ENV_PLUGIN",
        FilePathValue(plugin=True),
        "library that supplies the values of variables",
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
        "checks the pointers of each call",
        default="0",
        exists=VersionRange("2.2.12"),
        deprecated=VersionRange("2.29.7"),
        replaced_by="NCCL_CHECK_MODE",
        always_read=True,
    ),
    NcclVariable(
        "NCCL_CHECK_MODE",
        NamesValue(("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL")),
        "how arguments are checked",
        "DEFAULT",
        exists=VersionRange("2.29.7"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_CHECKS_DISABLE",
        _FLAG,
        "disables checks",
        "0",
        deprecated=VersionRange("2.2.12"),
        replaced_by="NCCL_CHECK_POINTERS",
        read_when="NCCL is older than 2.2.12",
    ),
    NcclVariable(
        "NCCL_COMM_BLOCKING",
        _FLAG,
        "whether calls may block",
        exists=VersionRange("2.14"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_COMM_ID",
        TextValue("HOST:PORT"),
        "address for bootstrap",
        read_when="the program does not create an identifier itself",
        source="src/bootstrap.cc",
    ),
    NcclVariable(
        "NCCL_SET_STACK_SIZE",
        _FLAG,
        "sets the kernels' stack to the maximum",
        "0",
        exists=VersionRange("2.9"),
        read_when="a kernel needs a local stack",
    ),
    NcclVariable(
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        _FLAG,
        "orders calls of different communicators",
        "0",
        exists=VersionRange("2.26"),
        read_when="a collective is launched",
    ),
    NcclVariable(
        "NCCL_LAUNCH_RACE_FATAL",
        _FLAG,
        "treats racing launches as an error",
        "1",
        exists=VersionRange("2.26"),
        read_when="NCCL_LAUNCH_ORDER_IMPLICIT is 1",
    ),
    NcclVariable(
        "NCCL_MULTI_RANK_GPU_ENABLE",
        _FLAG,
        "allows several ranks on one GPU",
        "0",
        exists=VersionRange("2.30"),
        read_when="two ranks share a GPU",
    ),
    NcclVariable(
        "NCCL_RAS_ENABLE",
        _FLAG,
        "service that reports the state of jobs",
        "1",
        exists=VersionRange("2.24"),
        always_read=True,
    ),
    NcclVariable(
        "NCCL_RAS_ADDR",
        TextValue("HOST:PORT"),
        "address of the RAS service",
        "localhost:28028",
        exists=VersionRange("2.24"),
        read_when="NCCL_RAS_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_RAS_TIMEOUT_FACTOR",
        NumberValue(low=1),
        "factor for the timeouts of the RAS service",
        "1",
        exists=VersionRange("2.24"),
        read_when="NCCL_RAS_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_IPC_USE_ABSTRACT_SOCKET",
        _FLAG,
        "uses abstract sockets between processes",
        "1",
        exists=VersionRange("2.29"),
        read_when="cuMem handles are exchanged",
    ),
)
_MULTI_NODE = (
    NcclVariable(
        "NCCL_MNNVL_ENABLE",
        NumberValue(choices=(0, 1, 2)),
        "multi-node NVLink",
        default="2",
        exists=VersionRange("2.21"),
        read_when=_MULTI,
        note="Needs NCCL_CUMEM_ENABLE=1. From 0.5.18 SGLang sets 1 on a server over several "
        "hosts of such a domain.",
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
        "clique of the domain",
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
        "minimum number of hosts for in-network reduction",
        "2",
        exists=VersionRange("2.9.9"),
        read_when="NCCL_COLLNET_ENABLE is 1",
    ),
    NcclVariable(
        "NCCL_IGNORE_COLLNET_MISMATCH",
        _FLAG,
        "accepts unequal devices for in-network reduction",
        "0",
        exists=VersionRange("2.30"),
        read_when="NCCL_COLLNET_ENABLE is 1",
    ),
)
_REMOVED = (
    NcclVariable(
        "NCCL_SINGLE_RING_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "message size below which one ring is used",
        exists=VersionRange("2.1", "2.2.99"),
        replaced_by="NCCL_ALGO",
    ),
    NcclVariable(
        "NCCL_LL_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "message size below which LL is used",
        exists=VersionRange("2.1", "2.4.99"),
        replaced_by="NCCL_PROTO",
    ),
    NcclVariable(
        "NCCL_TREE_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "message size below which trees are used",
        exists=VersionRange("2.4", "2.4.99"),
        replaced_by="NCCL_ALGO",
    ),
)
SYSTEM_VARIABLES = (*_LOG, *_FILES, *_PLUGINS, *_CHECKS, *_MULTI_NODE, *_REMOVED)
