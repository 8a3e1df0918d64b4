"""Owns the words of failures of NCCL, of schedulers and of a server at work. Decides nothing."""

from __future__ import annotations

from fleet_knowledge.log.symptom import AFTER, ECHO, LAST, row
from fleet_knowledge.release import Between

NCCL = (
    row(
        "shm_too_small",
        r"(?:failed to extend|Error while (?:creating|attaching to) shared memory segment|"
        r"posix_fallocate.*) ?/?(?:dev/shm)?\S*nccl|/dev/shm/\S+.*No space left|insufficient shared memory \(shm\)|"
        r"unable to (?:open|resize|allocate) shared memory|Bus error.*shared memory|No space left on device.*(?:/dev/shm|shm)",
        "NCCL shmutils.cc, torch",
    ),
    row(
        "nccl_invalid_usage",
        r"no algorithm/protocol available for function (?P<function>\w+)(?: with datatype (?P<datatype>\w+))?\.?(?:"
        r" (?P<variable>NCCL_\w+) was set to (?P<value>[^\s.]+))?",
        "NCCL enqueue.cc",
        between=Between("2.24"),
    ),
    row(
        "nccl_version_mismatch",
        r"NCCL.*(?:[Mm]ismatched? (?:NCCL )?version|version mismatch)|undefined symbol: nccl\w+",
        "NCCL bootstrap.cc",
    ),
    row(
        "nccl_invalid_usage",
        r"NCCL WARN .*(?:Invalid (?:value|config|argument)|unknown (?:algo|proto)\w*)|NCCL_(?:ALGO|PROTO).*(?:unrecognized|"
        r"invalid)",
        "NCCL",
    ),
    row(
        "nccl_init_failed",
        r"NCCL WARN .*(?:Cuda|CUDA|cuda) failure(?: \d+)? '?(?P<reason>[^'\n]+)'?",
        "NCCL init.cc",
        AFTER,
    ),
    row(
        "nccl_timeout",
        r"Watchdog caught collective operation timeout|NCCL watchdog thread terminated|Timed out waiting \d+ms|"
        r"ncclCommAbort|collective operation timeout",
        "ProcessGroupNCCL.cpp",
        AFTER,
    ),
    row(
        "ib_error",
        r"NCCL WARN .*(?:NET/IB|ibv_|IB (?:device|port)).*(?:[Ee]rror|failed|event)|Got completion .*error|ibv_\w+ failed",
        "NCCL net_ib.cc",
        AFTER,
    ),
    row(
        "nccl_peer_lost",
        r"ncclRemoteError|NCCL WARN .*(?:Socket recv failed|[Cc]onnection (?:closed|reset|refused)|"
        r"[Cc]all to \w+ .*(?:closed|refused|reset)|socketProgress: Connection closed|Accept failed|proxy.*abort)|"
        r"(?:[Gg]loo|NCCL|ProcessGroup|TCPStore).*[Cc]onnection (?:closed|reset) by (?:remote )?peer",
        "NCCL socket.cc, gloo",
        ECHO,
    ),
    row(
        "nccl_invalid_usage",
        "ncclInvalidUsage|NCCL error.*(?:invalid usage|invalid argument)|ncclInvalidArgument",
        "NCCL",
        AFTER,
    ),
    row(
        "nccl_init_failed",
        "NCCL error.*(?:unhandled (?:cuda|system) error|internal "
        "error|unhandled)|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|DistBackendError: NCCL error",
        "ProcessGroupNCCL, pynccl.py",
        AFTER,
    ),
)

SERVING = (
    row(
        "watchdog_timeout",
        r"[Ww]atchdog timeout \((?:self\.)?watchdog_timeout=(?P<timeout_s>\d+)(?!.*soft=True)",
        "scheduler.py 0.3 - 0.5.23",
        AFTER,
    ),
    row(
        "nan_logits",
        "NaN in the logits|Detected errors during sampling",
        "sampler.py",
    ),
    row(
        "kv_transfer_failed",
        r"(?:KVTransferError|KVPoll\.Failed|transfer (?:engine|session).*(?:fail|error)|mooncake.*(?:fail|error)|"
        r"nixl.*(?:fail|error)|[Bb]ootstrap.*(?:failed|timed? ?out))",
        "disaggregation/",
        AFTER,
    ),
    row(
        "detokenizer_crashed",
        r"(?:DetokenizerManager|TokenizerManager|[Dd]etokenizer)\w* hit an exception",
        "detokenizer_manager.py",
        ECHO,
    ),
    row(
        "scheduler_crashed",
        "^Fatal Python error: |Segmentation fault",
        "faulthandler",
        AFTER,
    ),
    row(
        "killed",
        r"Subprocess (?:\w*scheduler)_(?P<rank>\d+) .*crashed with exit code (?P<exit_code>-9)\b",
        "engine.py; SIGKILL of a scheduler",
        ECHO,
        between=Between("0.5.13"),
    ),
    row(
        "scheduler_crashed",
        r"[Rr]ank (?P<rank>\d+) scheduler died during initialization \(exit code: (?P<exit_code>-?\d+)\)",
        "engine.py",
        ECHO,
        between=Between("0.5.10"),
    ),
    row(
        "scheduler_crashed",
        r"(?:[Ss]cheduler|DataParallelController|TpModelWorker\w*|ModelTpServer|"
        r"Exception in \w*TpModelWorker\w*) (?:hit an exception|caught)",
        "managers/scheduler.py",
        ECHO,
    ),
    row(
        "scheduler_crashed",
        r"[Rr]ank (?P<rank>\d+) scheduler is dead",
        "engine.py",
        ECHO,
        between=Between("0.4.0", "0.5.9"),
    ),
    row(
        "scheduler_crashed",
        r"crashed with exit code (?P<exit_code>-?\d+)|^Exit code: (?P<code>-?[1-9]\d*)\b",
        "engine.py",
        LAST,
    ),
    row(
        "scheduler_crashed",
        "Received sigquit from a child|SIGQUIT received",
        "engine.py 0.4 - 0.5.23",
        LAST,
    ),
    row(
        "killed",
        r"^(?:\S+: line \d+: +\d+ )?Killed\b(?! process)",
        "a shell",
        LAST,
    ),
    row("host_oom_kill", r"exited with code (?P<exit_code>137)\b|exit(?:ed with)? status 137\b", "docker compose, podman, shells", LAST),
    row("killed", r"code=killed, status=9/KILL|terminated by signal 9\b", "systemd, time(1)", LAST),
    row("launch_crashed", r"exited with code (?P<exit_code>[1-9]\d{0,2})\b", "docker compose", LAST),
)
