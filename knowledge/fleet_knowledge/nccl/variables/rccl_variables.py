"""Lists RCCL's own variables (AMD). RCCL also reads most of NCCL's variables."""

from __future__ import annotations

from fleet_knowledge.nccl.variables.value_types import FilePathValue, NumberValue, TextValue
from fleet_knowledge.nccl.variables.variable import NcclVariable

_FLAG = NumberValue(choices=(0, 1))
_SOURCE = "RCCL src/ of ROCm 6.0 - 6.4, RCCL environment documentation 7.1"


def _row(
    name: str,
    values: NumberValue | FilePathValue | TextValue,
    meaning: str,
    default: str = "",
    note: str = "",
) -> NcclVariable:
    return NcclVariable(
        name, values, meaning, default, read_when="RCCL needs it", note=note, source=_SOURCE
    )


RCCL_VARIABLES = (
    _row("RCCL_MSCCL_ENABLE", _FLAG, "MSCCL algorithms", "1"),
    _row("RCCL_MSCCL_FORCE_ENABLE", _FLAG, "MSCCL even where it is not the default", "0"),
    _row("RCCL_MSCCL_ENABLE_SINGLE_PROCESS", _FLAG, "MSCCL with all GPUs in one process", "1"),
    _row("RCCL_MSCCLPP_ENABLE", _FLAG, "MSCCL++ for small messages"),
    _row(
        "RCCL_MSCCLPP_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "largest message for MSCCL++",
        "1048576",
    ),
    _row(
        "RCCL_LL128_FORCE_ENABLE",
        _FLAG,
        "LL128 even where it is not the default",
        "0",
        "Needs the output check.",
    ),
    _row("RCCL_ENABLE_CLIQUE", _FLAG, "kernels for cliques", "0"),
    _row("RCCL_ENABLE_INTRANET", NumberValue(low=-2, high=1), "uses the network inside a host"),
    _row(
        "RCCL_INTRANET_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "smallest message that uses the network inside a host",
        "8388608",
    ),
    _row("RCCL_FORCE_ENABLE_GDRDMA", NumberValue(low=-1, high=1), "GPU Direct RDMA"),
    _row("RCCL_MODEL_MATCHING_DISABLE", _FLAG, "disables prepared topologies", "0"),
    _row("RCCL_NET_CONTIGUOUS_MEM", _FLAG, "contiguous memory for the network", "0"),
    _row("RCCL_P2P_NET_DISABLE", _FLAG, "disables the network for sends", "0"),
    _row(
        "RCCL_P2P_NET_THRESHOLD",
        NumberValue(low=0, unit="bytes"),
        "smallest send over the network",
        "131072",
    ),
    _row("RCCL_PIVOT_ALLTOALL_ENABLE", _FLAG, "pivot all-to-all", "1"),
    _row(
        "RCCL_STACK_SIZE_OVERRIDE", NumberValue(low=0, unit="bytes"), "stack size of kernels", "0"
    ),
    _row("RCCL_USE_ROCM_SMI_LIB", _FLAG, "reads the topology with rocm_smi", "0"),
    _row(
        "RCCL_KERNEL_COLL_TRACE_ENABLE",
        _FLAG,
        "traces kernels",
        "0",
        "Costs time in a measured run.",
    ),
    _row("RCCL_LOG_LEVEL", NumberValue(low=0), "what RCCL logs", "1"),
    _row("RCCL_TREES", TextValue("a list of trees"), "trees, given explicitly"),
    _row(
        "RCCL_DUMP_ROME_MODEL_FILE", FilePathValue(), "file to which the topology model is written"
    ),
)
