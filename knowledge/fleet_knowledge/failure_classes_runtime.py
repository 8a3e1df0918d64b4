"""Lists the failure classes of a running server and of NCCL."""

from __future__ import annotations

from fleet_knowledge.failure_class import NEEDS_HOST_REPAIR, Failure
from fleet_protos.errors import ErrorKind

SERVING_FAILURES = (
    Failure(
        "watchdog_timeout",
        ErrorKind.SERVER_EXITED,
        "One forward pass made no progress for the watchdog's time: usually a collective hangs "
        "(P2P or NVLink fault, a dead peer) or a JIT compilation started during traffic.",
        (
            "Read NCCL's output and the last line of the rank that did NOT report. `py-spy: not "
            "found` is only a missing tool."
        ),
        (
            "Taking the `Killed` that follows for the host's out-of-memory killer; only raising "
            "--watchdog-timeout."
        ),
        "sglang issues 3752, 7783",
    ),
    Failure(
        "scheduler_crashed",
        ErrorKind.SERVER_EXITED,
        "A scheduler process ended by an exception or a signal that no other class explains.",
        (
            "Read the exception in the cause line and the traceback above it in the log; search "
            "SGLang's issues for these words."
        ),
        (
            "Judging by `Received sigquit`, `crashed with exit code` or exit code 137: these are "
            "consequences."
        ),
        "managers/scheduler.py, 0.4.1 - 0.5.23",
    ),
    Failure(
        "scheduler_died",
        ErrorKind.SERVER_EXITED,
        "A process of the server ended without a log message while the others continued.",
        (
            "Look at `dmesg -T` for the out-of-memory killer or a segmentation fault, and at the "
            "log of the job scheduler."
        ),
        "Waiting for the launcher to notice: up to 0.5.9 it never does.",
        "seen by the agent, which watches every process; sglang 0.4.1 - 0.5.9",
    ),
    Failure(
        "launch_crashed",
        ErrorKind.SERVER_EXITED,
        "The launcher ended by an exception before the server was ready.",
        "Read the exception in the cause line.",
        "Retrying more than once without a change.",
        "launch_server.py",
    ),
    Failure(
        "killed",
        ErrorKind.SERVER_EXITED,
        (
            "The server got SIGKILL and its log names no cause: the host's out-of-memory killer, a "
            "person or a job scheduler sent it."
        ),
        "Look at `dmesg -T`, the cgroup's memory.events and who was logged in.",
        "Treating this end as a crash of SGLang.",
        "exit code -9 or 137 without a cause in the log",
    ),
    Failure(
        "nan_logits",
        ErrorKind.SERVER_EXITED,
        (
            "The model produced NaN: damaged weights, a wrong quantisation, a kernel fault, or "
            "LL128 on hardware that does not preserve its write order."
        ),
        (
            "Check the output with default NCCL settings and another attention backend; compare "
            "the weight files."
        ),
        "--enable-nan-detection off: it hides wrong output.",
        "sampler.py `Detected errors during sampling! NaN in the logits.`",
    ),
    Failure(
        "detokenizer_crashed",
        ErrorKind.SERVER_EXITED,
        (
            "The detokenizer or the tokenizer manager ended by an exception; schedulers may be "
            "healthy."
        ),
        "Read the exception in the cause line.",
        "Looking for the fault on the GPUs.",
        "managers/detokenizer_manager.py",
    ),
    Failure(
        "kv_transfer_failed",
        ErrorKind.SERVER_EXITED,
        "The transfer of KV cache between prefill and decode servers could not be set up or broke.",
        (
            "Check that both sides have the same transfer backend, that the RDMA devices of "
            "--disaggregation-ib-device exist and peers are up."
        ),
        "Looking at the log of only one side.",
        "disaggregation/, mooncake, nixl",
    ),
    Failure(
        "expert_exchange_failed",
        ErrorKind.SERVER_EXITED,
        (
            "The exchange of tokens between experts (DeepEP over NVSHMEM) could not be set up, or "
            "a rank did not join it in time."
        ),
        "Look for the rank or host that ended first. At the launch: check that IBGDA is enabled in "
        "the driver, that all hosts have the same RDMA devices up (NVSHMEM_HCA_LIST, "
        "NVSHMEM_IB_GID_INDEX), and that DeepEP fits its NVSHMEM.",
        (
            "Only raising a timeout; comparing --moe-a2a-backend none with it as if it were the "
            "same server."
        ),
        "DeepEP issues 553, 707; sglang issues 6017, 7888",
    ),
)

COLLECTIVE_FAILURES = (
    Failure(
        "nccl_init_failed",
        ErrorKind.SERVER_LAUNCH,
        "CUDA, the driver or the system returned an error while NCCL set up a communicator.",
        "Read the NCCL WARN line; `operation not supported` means cuMem or P2P on a virtual GPU or "
        "PCIe: try NCCL_CUMEM_ENABLE=0, NCCL_P2P_DISABLE=1, and check driver against CUDA.",
        "Reading the [0] of an NCCL line as TP rank: this number is the CUDA device.",
        "NCCL 2.18 - 2.30; vllm issue 20226, nccl issue 1263",
    ),
    Failure(
        "nccl_invalid_usage",
        ErrorKind.CONFIG,
        "An NCCL setting has no implementation for a collective that the server needs.",
        (
            "Restrict the setting to one collective and add a fallback (NCCL 2.24 and later), as "
            "in NCCL_ALGO='allreduce:nvls,ring'."
        ),
        "Trying other hosts: the job itself is wrong.",
        "nccl issues 1898, 1670",
    ),
    Failure(
        "nccl_version_mismatch",
        NEEDS_HOST_REPAIR,
        "Two ranks or two libraries have different NCCL versions.",
        (
            "Give all hosts the same image or environment; look for a second libnccl in "
            "LD_LIBRARY_PATH."
        ),
        "Running one server over these hosts before their versions agree.",
        "ncclInvalidUsage/ncclInvalidArgument `mismatch`, undefined symbol in libnccl",
    ),
    Failure(
        "nccl_timeout",
        ErrorKind.SERVER_EXITED,
        (
            "A collective did not end in time: one rank did not join it, or the link between the "
            "ranks is down."
        ),
        (
            "Find the rank that did not report (it died or hangs elsewhere); check Xid messages, "
            "NVLink and InfiniBand state."
        ),
        "Only raising the timeout.",
        "ProcessGroupNCCL watchdog",
    ),
    Failure(
        "nccl_peer_lost",
        ErrorKind.SERVER_EXITED,
        (
            "A peer closed its connection: another rank or host died first, and its log holds the "
            "cause."
        ),
        "Read the logs of all hosts. The host that ended first shows the cause.",
        "Looking for the fault on the host that reports the closed connection.",
        "ncclRemoteError, `Socket recv failed`, `Connection closed by remote peer`",
    ),
    Failure(
        "nccl_no_interface",
        ErrorKind.CONFIG,
        (
            "NCCL found no network interface for its bootstrap, or none that NCCL_SOCKET_IFNAME "
            "allows."
        ),
        (
            "Set NCCL_SOCKET_IFNAME to an interface that is up and reaches the other hosts "
            "(`=eth0` is exact, a plain name is a prefix)."
        ),
        "NCCL_IB_DISABLE: the bootstrap uses sockets in any case.",
        "NCCL src/bootstrap.cc, src/transport/net_socket.cc 2.18 - 2.30",
    ),
    Failure(
        "nccl_unreachable",
        ErrorKind.CONFIG,
        (
            "A rank could not reach the address that another rank gave: wrong interface, no route, "
            "or a firewall between the hosts."
        ),
        "Set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the interface that reaches the other "
        "hosts, and open all ports between them (containers: --network host).",
        "NCCL_IB_DISABLE or a longer timeout: the bootstrap itself uses TCP.",
        "NCCL src/misc/socket.cc 2.18 - 2.30; sglang issues 3820, 5594",
    ),
    Failure(
        "nccl_duplicate_gpu",
        ErrorKind.CONFIG,
        "Two ranks of one communicator use the same GPU.",
        (
            "Give every rank its own GPU: check CUDA_VISIBLE_DEVICES, --base-gpu-id and "
            "--gpu-id-step, and what else runs on the host."
        ),
        "NCCL_MULTI_RANK_GPU_ENABLE=1 for a benchmark: two ranks would share one GPU's speed.",
        "NCCL src/init.cc 2.18 - 2.30",
    ),
    Failure(
        "nccl_nvls_failed",
        ErrorKind.DEPLOY_FAILED,
        (
            "NVLink SHARP memory could not be set up: the fabric manager or IMEX does not work, or "
            "the multicast memory is used up."
        ),
        (
            "Check `nvidia-smi -q` (Fabric State, Status) and nvidia-fabricmanager; "
            "NCCL_NVLS_ENABLE=0 runs without it."
        ),
        "Comparing with hosts where it works: they run another algorithm.",
        "NCCL src/transport/nvls.cc 2.18 - 2.30",
    ),
    Failure(
        "shm_too_small",
        NEEDS_HOST_REPAIR,
        "/dev/shm is full or too small (64 MB is docker's default).",
        (
            "Run with --shm-size 32g or --ipc=host (Kubernetes: emptyDir with medium Memory on "
            "/dev/shm). Remove stale /dev/shm/nccl-* files."
        ),
        (
            "Clearing the disk or searching the network: the `Socket recv failed` lines are "
            "consequences."
        ),
        "nccl issue 342, pytorch ci-infra pull 490",
    ),
    Failure(
        "ib_error",
        ErrorKind.SERVER_EXITED,
        "InfiniBand or RoCE reported an error: a link went down, or a GID or a limit is wrong.",
        (
            "Check `ibstat`, NCCL_IB_HCA, NCCL_IB_GID_INDEX, and `ulimit -l unlimited` (--ulimit "
            "memlock=-1 in a container)."
        ),
        "NCCL_IB_DISABLE=1 in a benchmark across hosts: it measures TCP.",
        "NCCL net_ib.cc, ibvwrap.cc",
    ),
    Failure(
        "p2p_unsupported",
        ErrorKind.CONFIG,
        "GPUs of this host have no peer access (consumer cards, IOMMU or ACS).",
        "Launch with --disable-custom-all-reduce (and NCCL_P2P_DISABLE=1).",
        "Comparing with hosts that have peer access: they run different code.",
        "sglang issue 4814, pull 8765",
    ),
    Failure(
        "custom_all_reduce_failed",
        ErrorKind.CONFIG,
        "SGLang's own all-reduce could not share its buffers between the ranks of this host.",
        "Unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments, check driver against CUDA and that the "
        "containers share IPC and all GPUs; else launch with --disable-custom-all-reduce.",
        (
            "Following `Possible solutions` below it (less memory, no CUDA graphs): memory is not "
            "the cause."
        ),
        "sglang issue 11957, pulls 14193 and 27948; vllm issue 42609",
    ),
)
