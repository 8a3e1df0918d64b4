"""Lists the symptoms of failures of NCCL, of schedulers and of a running server."""

from __future__ import annotations

from fleet_knowledge.release import VersionRange
from fleet_knowledge.server_log.symptoms.symptom import AFTER, ECHO, LAST, symptom

NCCL_SYMPTOMS = (
    symptom(
        "shm_too_small",
        r"(?:failed to extend|Error while (?:creating|attaching to) shared memory segment|"
        r"posix_fallocate.*) ?/?(?:dev/shm)?\S*nccl|/dev/shm/\S+.*No space left|insufficient "
        r"shared memory \(shm\)|"
        r"unable to (?:open|resize|allocate) shared memory|Bus error.*shared memory|No space left "
        r"on device.*(?:/dev/shm|shm)",
        "NCCL shmutils.cc, torch",
    ),
    symptom(
        "nccl_invalid_usage",
        r"no algorithm/protocol available for function (?P<function>\w+)(?: with datatype "
        r"(?P<datatype>\w+))?\.?(?:"
        r" (?P<variable>NCCL_\w+) was set to (?P<value>[^\s.]+))?",
        "NCCL enqueue.cc",
        versions=VersionRange("2.24"),
    ),
    symptom(
        "nccl_version_mismatch",
        r"NCCL.*(?:[Mm]ismatched? (?:NCCL )?version|version mismatch)|undefined symbol: nccl\w+",
        "NCCL bootstrap.cc",
    ),
    symptom(
        "nccl_invalid_usage",
        r"NCCL WARN .*(?:Invalid (?:value|config|argument)|unknown (?:algo|proto)\w*)|"
        r"NCCL_(?:ALGO|PROTO).*(?:unrecognized|"
        r"invalid)",
        "NCCL",
    ),
    symptom(
        "nccl_nvls_failed",
        r"nvls\.cc:\d+ NCCL WARN .*(?:[Ff]ailure|[Ff]ailed|[Ee]rror)",
        "NCCL transport/nvls.cc; nccl issues 1672, 1788",
        AFTER,
    ),
    symptom(
        "nccl_init_failed",
        r"NCCL WARN .*(?:Cuda|CUDA|cuda) failure(?: \d+)? '?(?P<reason>[^'\n]+)'?",
        "NCCL init.cc",
        AFTER,
    ),
    symptom(
        "nccl_timeout",
        r"(?:\[Rank (?P<reporting_rank>\d+)\] )?Watchdog caught collective operation timeout|"
        r"NCCL watchdog thread terminated|Timed out waiting \d+ms|"
        r"ncclCommAbort|collective operation timeout",
        "ProcessGroupNCCL.cpp",
        AFTER,
    ),
    symptom(
        "nccl_no_interface",
        r"Unable to find address for: \S|Unable to resolve hostname to a \(local\) address",
        "gloo transport/tcp/device.cc",
        cure="Set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to an interface that is up on this "
        "host; the host's own name must resolve to its address (/etc/hosts).",
    ),
    symptom(
        "nccl_unreachable",
        (
            r"NCCL WARN .*Connect to \S+ (?:failed|returned).*(?:No route|unreachable|timed out|"
            r"connection abort|Cannot assign)"
        ),
        "NCCL misc/socket.cc; sglang issues 3820, 5594",
        AFTER,
    ),
    symptom(
        "ib_error",
        (
            r"NCCL WARN .*(?:NET/IB|ibv_|IB (?:device|port)).*(?:[Ee]rror|failed|event)|Got "
            r"completion .*error|ibv_\w+ failed"
        ),
        "NCCL net_ib.cc",
        AFTER,
    ),
    symptom(
        "nccl_peer_lost",
        r"ncclRemoteError|NCCL WARN .*(?:Socket recv failed|[Cc]onnection (?:closed|reset|refused)|"
        r"[Cc]all to \w+ .*(?:closed|refused|reset)|socketProgress: Connection closed|Accept "
        r"failed|proxy.*abort)|"
        r"(?:[Gg]loo|NCCL|ProcessGroup|TCPStore).*[Cc]onnection (?:closed|reset) by (?:remote "
        r")?peer|"
        r"\[c10d\] (?:send|recv)\w* failed on SocketImpl|\"should dump\" flag on TCPStore",
        "NCCL socket.cc, gloo",
        ECHO,
    ),
    symptom(
        "nccl_invalid_usage",
        "ncclInvalidUsage|NCCL error.*(?:invalid usage|invalid argument)|ncclInvalidArgument",
        "NCCL",
        AFTER,
    ),
    symptom(
        "nccl_init_failed",
        "NCCL error.*(?:unhandled (?:cuda|system) error|internal "
        "error|unhandled)|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|"
        "DistBackendError: NCCL error",
        "ProcessGroupNCCL, pynccl.py",
        AFTER,
    ),
)

SERVING_SYMPTOMS = (
    symptom(
        "watchdog_timeout",
        r"[Ww]atchdog timeout \((?:self\.)?watchdog_timeout=(?P<timeout_s>\d+)(?!.*soft=True)",
        "scheduler.py 0.3 - 0.5.23",
        AFTER,
    ),
    symptom(
        "nan_logits",
        (
            "NaN in the logits|Detected errors during sampling|probability tensor contains either "
            "`inf`"
        ),
        "sampler.py",
    ),
    symptom(
        "expert_exchange_failed",
        r"DeepEP (?:error: |timeout check failed)|nvshmem\w* (?:initialization|setup connections) "
        r"failed|NVSHMEM API called before NVSHMEM|"
        r"nvshmem.*non-zero status",
        "DeepEP buffer.py and kernels; NVSHMEM init.cu, transport.cpp; sglang issues 6017, 7888",
    ),
    symptom(
        "kv_transfer_failed",
        r"(?:KVTransferError|KVPoll\.Failed|transfer (?:engine|session).*(?:fail|error)|"
        r"[Mm]ooncake.*(?:fail|error)|"
        r"nixl.*(?:fail|error)|[Bb]ootstrap.*(?:failed|timed? ?out))",
        "disaggregation/",
        AFTER,
    ),
    symptom(
        "detokenizer_crashed",
        r"(?:DetokenizerManager|TokenizerManager|[Dd]etokenizer)\w* hit an exception",
        "detokenizer_manager.py",
        ECHO,
    ),
    symptom(
        "scheduler_crashed",
        "^Fatal Python error: |Segmentation fault",
        "faulthandler",
        AFTER,
    ),
    symptom(
        "killed",
        (
            r"Subprocess (?:\w*scheduler_(?P<rank>\d+)|\w+) .*crashed with exit code "
            r"(?P<exit_code>-9)\b"
        ),
        "engine.py; SIGKILL of a scheduler",
        ECHO,
        versions=VersionRange("0.5.13"),
    ),
    symptom(
        "scheduler_crashed",
        (
            r"[Rr]ank (?P<rank>\d+) scheduler died during initialization \(exit code: "
            r"(?P<exit_code>-?\d+)\)"
        ),
        "engine.py",
        ECHO,
        versions=VersionRange("0.5.10"),
    ),
    symptom(
        "scheduler_crashed",
        r"(?:[Ss]cheduler|DataParallelController|TpModelWorker\w*|ModelTpServer|"
        r"Exception in \w*TpModelWorker\w*) (?:hit an exception|caught)",
        "managers/scheduler.py",
        ECHO,
    ),
    symptom(
        "scheduler_crashed",
        r"[Rr]ank (?P<rank>\d+) scheduler is dead",
        "engine.py",
        ECHO,
        versions=VersionRange("0.4.0", "0.5.9"),
    ),
    symptom(
        "scheduler_crashed",
        r"crashed with exit code (?P<exit_code>-?\d+)|^Exit code: (?P<code>-?[1-9]\d*)\b",
        "engine.py",
        LAST,
    ),
    symptom(
        "scheduler_crashed",
        "Received sigquit from a child|SIGQUIT received",
        "engine.py 0.4 - 0.5.23",
        LAST,
    ),
    symptom(
        "killed",
        r"^(?:\S+: line \d+: +\d+ )?Killed\b(?! process)",
        "a shell",
        LAST,
    ),
    symptom(
        "host_oom_kill",
        r"exited with code (?P<exit_code>137)\b|^Exit Code: +137\b|exit(?:ed with)? status 137\b",
        "docker compose, Kubernetes, podman, shells",
        LAST,
    ),
    symptom(
        "container_not_started",
        (
            r"^docker: Error response from daemon|could not select device driver|OCI runtime "
            r"create failed|^nvidia-container-cli: "
        ),
        "docker, podman, runc",
        AFTER,
    ),
    symptom(
        "killed", r"code=killed, status=9/KILL|terminated by signal 9\b", "systemd, time(1)", LAST
    ),
    symptom(
        "launch_crashed",
        r"exited with code (?!130\b|143\b)(?P<exit_code>[1-9]\d{0,2})\b",
        "docker compose",
        LAST,
    ),
)
