"""Owns the rows of NCCL's variables about how data moves between the GPUs of a host: choice, channels, peers, memory. Decides nothing."""

from __future__ import annotations

from fleet_knowledge.nccl.variables.algo_proto_grammar import ALGORITHMS, PROTOCOLS, AlgoProtoValue
from fleet_knowledge.nccl.variables.value_types import (
    FilePathValue,
    LevelValue,
    NamesValue,
    NumberValue,
    TextValue,
)
from fleet_knowledge.nccl.variables.variable import NcclVariable
from fleet_knowledge.release import Between

FLAG = NumberValue(choices=(0, 1))
BYTES = NumberValue(low=1, unit="bytes")
_CTAS = NumberValue(low=1, limits=((Between("", "2.24.99"), 32), (Between("2.25"), 64)))
_P2P = LevelValue(("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"))
_GRAPHS = "a CUDA graph captures a collective"
_NVLS = "NVLink SHARP is in use"

_CHOICE = (
    NcclVariable(
        "NCCL_ALGO",
        AlgoProtoValue(ALGORITHMS, kills_when_empty=False),
        "algorithms that NCCL may choose from",
        exists=Between("2.5"),
        always_read=True,
        note="From 2.24 a collective that is left without an algorithm fails: Broadcast and Reduce have Ring only; AllGather and"
        " ReduceScatter have Ring, NVLS, CollnetDirect and PAT. Restrict it: `allreduce:tree`.",
    ),
    NcclVariable(
        "NCCL_PROTO",
        AlgoProtoValue(PROTOCOLS, kills_when_empty=True),
        "protocols that NCCL may choose from",
        exists=Between("2.5"),
        always_read=True,
        note="LL128 that is forced on hardware without its ordering corrupts data: such an arm needs the output check.",
    ),
    NcclVariable("NCCL_MIN_CTAS", _CTAS, "least blocks (channels) of a collective", exists=Between("2.17"), always_read=True),
    NcclVariable("NCCL_MAX_CTAS", _CTAS, "most blocks (channels) of a collective", exists=Between("2.17"), always_read=True),
    NcclVariable(
        "NCCL_MIN_NCHANNELS",
        _CTAS,
        "least channels",
        exists=Between("2.5"),
        deprecated=Between("2.17"),
        replaced_by="NCCL_MIN_CTAS",
        always_read=True,
        note="With NCCL_MIN_CTAS the higher value is used.",
    ),
    NcclVariable(
        "NCCL_MAX_NCHANNELS",
        _CTAS,
        "most channels",
        exists=Between("2.5"),
        deprecated=Between("2.17"),
        replaced_by="NCCL_MAX_CTAS",
        always_read=True,
        note="With NCCL_MAX_CTAS the lower value is used.",
    ),
    NcclVariable(
        "NCCL_MIN_NRINGS",
        _CTAS,
        "least channels",
        deprecated=Between("2.5"),
        replaced_by="NCCL_MIN_CTAS",
        always_read=True,
        note="Ignored beside NCCL_MIN_NCHANNELS.",
    ),
    NcclVariable(
        "NCCL_MAX_NRINGS",
        _CTAS,
        "most channels",
        deprecated=Between("2.5"),
        replaced_by="NCCL_MAX_CTAS",
        always_read=True,
        note="Ignored beside NCCL_MAX_NCHANNELS.",
    ),
    NcclVariable(
        "NCCL_NTHREADS",
        NumberValue(choices=(64, 128, 256, 512)),
        "CUDA threads of a block",
        default="512",
        always_read=True,
        note="512 is the default of every recent GPU: setting it changes nothing.",
    ),
    NcclVariable(
        "NCCL_BUFFSIZE",
        BYTES,
        "buffer between two GPUs, Simple protocol",
        default="4194304",
        always_read=True,
        note="For every channel and peer: it costs GPU memory.",
    ),
    NcclVariable("NCCL_CGA_CLUSTER_SIZE", NumberValue(low=0, high=8), "blocks of a cluster", exists=Between("2.16"), always_read=True),
    NcclVariable(
        "NCCL_CTA_POLICY",
        NamesValue(("DEFAULT", "EFFICIENCY", "ZERO"), many="|", numbers=(0, 1, 2)),
        "policy for the number of blocks",
        default="DEFAULT",
        exists=Between("2.27"),
        always_read=True,
        note="Names from 2.29, numbers 0 to 2 from 2.27.",
    ),
    NcclVariable(
        "NCCL_LAUNCH_MODE",
        NamesValue(("PARALLEL", "GROUP")),
        "how kernels are launched",
        "PARALLEL",
        deprecated=Between("2.9"),
        always_read=True,
    ),
)
_PEERS = (
    NcclVariable(
        "NCCL_P2P_LEVEL",
        _P2P,
        "greatest distance over which GPUs reach each other's memory",
        exists=Between("2.3.4"),
        always_read=True,
        note="Numbers are from before 2.4.7 and discouraged. Not read when NCCL_P2P_DISABLE=1.",
    ),
    NcclVariable(
        "NCCL_P2P_DISABLE",
        FLAG,
        "no direct access between GPUs",
        default="0",
        always_read=True,
        logged=Between("2.23"),
        note="Logged only when it is 1; not logged at all before 2.23.",
    ),
    NcclVariable("NCCL_P2P_DIRECT_DISABLE", FLAG, "no direct access to user buffers", default="0", read_when="one process has several GPUs"),
    NcclVariable("NCCL_SHM_DISABLE", FLAG, "no transport through host memory", default="0", read_when="two GPUs of a host have no peer access"),
    NcclVariable(
        "NCCL_NVB_DISABLE", FLAG, "no NVLink by way of a third GPU", default="0", exists=Between("2.11"), read_when="GPUs have NVLink"
    ),
    NcclVariable(
        "NCCL_IGNORE_DISABLED_P2P", NumberValue(choices=(0, 1, 2)), "no message about P2P that is off", "0", read_when="peer access is tried"
    ),
    NcclVariable("NCCL_RUNTIME_CONNECT", FLAG, "connect at the first use", "1", exists=Between("2.22"), read_when="NCCL_CUMEM_ENABLE is 1"),
    NcclVariable(
        "NCCL_NVLS_ENABLE",
        NumberValue(choices=(0, 1, 2)),
        "NVLink SHARP",
        default="2",
        exists=Between("2.17"),
        always_read=True,
        note="SGLang sets 0 itself when it is unset.",
    ),
    NcclVariable(
        "NCCL_CUMEM_ENABLE",
        FLAG,
        "memory by cuMem functions",
        exists=Between("2.18"),
        defaults=((Between("2.18", "2.18.99"), "0"),),
        always_read=True,
        note="Chosen by the system from 2.19; SGLang sets 0 itself when it is unset.",
    ),
    NcclVariable(
        "NCCL_CUMEM_HOST_ENABLE",
        FLAG,
        "host memory by cuMem functions",
        exists=Between("2.23"),
        defaults=((Between("2.23", "2.23.99"), "0"),),
        read_when="the CUDA driver supports it",
    ),
    NcclVariable(
        "NCCL_LOCAL_REGISTER", FLAG, "register buffers when the user asks", "1", exists=Between("2.19"), read_when="buffers are registered"
    ),
    NcclVariable(
        "NCCL_LEGACY_CUDA_REGISTER", FLAG, "register cudaMalloc buffers", "0", exists=Between("2.24"), read_when="buffers are registered"
    ),
    NcclVariable("NCCL_WIN_ENABLE", FLAG, "windows of symmetric memory", "1", exists=Between("2.27"), read_when="all GPUs have peer access"),
    NcclVariable(
        "NCCL_GRAPH_REGISTER",
        FLAG,
        "register buffers of captured graphs",
        default="1",
        exists=Between("2.11"),
        read_when=_GRAPHS,
    ),
    NcclVariable("NCCL_GRAPH_MIXING_SUPPORT", FLAG, "calls from several graphs at once", "1", exists=Between("2.13"), read_when=_GRAPHS),
    NcclVariable("NCCL_GRAPH_STREAM_ORDERING", FLAG, "order kernels of captured graphs", "1", exists=Between("2.30"), read_when=_GRAPHS),
    NcclVariable(
        "NCCL_MEM_SYNC_DOMAIN", FLAG, "memory domain of NCCL's kernels", "1", exists=Between("2.16"), read_when="the GPU is sm90 or later"
    ),
    NcclVariable(
        "NCCL_P2P_LL_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "greatest send with LL",
        "16384",
        exists=Between("2.14"),
        read_when="something is sent",
    ),
    NcclVariable("NCCL_ALLOC_P2P_NET_LL_BUFFERS", FLAG, "LL buffers for sends over the network", "0", exists=Between("2.14"), always_read=True),
    NcclVariable("NCCL_SYM_GIN_KERNELS_ENABLE", FLAG, "symmetric kernels over the network", "1", exists=Between("2.29.3"), read_when=_NVLS),
    NcclVariable(
        "NCCL_NVLS_NCHANNELS",
        NumberValue(low=1, high=64),
        "channels of NVLink SHARP",
        read_when=_NVLS,
        source="src/transport/nvls.cc 2.18 - 2.30",
    ),
    NcclVariable(
        "NCCL_NVLS_CHUNKSIZE",
        BYTES,
        "chunk of NVLink SHARP",
        "131072",
        exists=Between("2.21"),
        read_when=_NVLS,
        source="src/transport/nvls.cc",
    ),
    NcclVariable("NCCL_LL_BUFFSIZE", BYTES, "buffer of the LL protocol", always_read=True, source="src/init.cc 2.18 - 2.30"),
    NcclVariable("NCCL_LL128_BUFFSIZE", BYTES, "buffer of the LL128 protocol", always_read=True, source="src/init.cc 2.18 - 2.30"),
    NcclVariable(
        "NCCL_LL128_NTHREADS",
        NumberValue(low=1, high=640, multiple_of=32),
        "CUDA threads of a block with LL128",
        always_read=True,
        source="src/graph/tuning.cc 2.18 - 2.30",
    ),
    NcclVariable(
        "NCCL_MIN_P2P_NCHANNELS",
        NumberValue(low=1, high=64),
        "least channels of sends",
        "1",
        always_read=True,
        source="src/graph/paths.cc 2.18 - 2.30",
    ),
    NcclVariable(
        "NCCL_MAX_P2P_NCHANNELS",
        NumberValue(low=1, high=64),
        "most channels of sends",
        always_read=True,
        source="src/graph/paths.cc 2.18 - 2.30",
    ),
    NcclVariable(
        "NCCL_THREAD_THRESHOLDS",
        TextValue("six numbers"),
        "bytes for a thread, by algorithm and protocol",
        always_read=True,
        source="src/graph/tuning.cc 2.18 - 2.30",
    ),
)
_GRAPH_FILES = (
    NcclVariable("NCCL_GRAPH_FILE", FilePathValue(), "rings and trees from a file", always_read=True, source="src/graph/search.cc 2.18 - 2.30"),
    NcclVariable(
        "NCCL_GRAPH_DUMP_FILE", FilePathValue(), "where rings and trees are written", always_read=True, source="src/graph/search.cc 2.18 - 2.30"
    ),
)
TRANSFER_VARIABLES = (*_CHOICE, *_PEERS, *_GRAPH_FILES)
