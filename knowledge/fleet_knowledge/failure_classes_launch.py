"""Lists the failure classes of a launch: memory, ports, arguments, models."""

from __future__ import annotations

from fleet_knowledge.failure_class import NEEDS_HOST_REPAIR, Failure
from fleet_protos.errors import ErrorKind

MEMORY_FAILURES = (
    Failure(
        "oom_kv_cache",
        ErrorKind.SERVER_OOM,
        (
            "Weights (with draft weights) already take more than mem-fraction-static of the GPU's "
            "memory, so nothing is left for the KV cache."
        ),
        (
            "Raise --mem-fraction-static, or use more GPUs or a smaller quantisation. (Out of "
            "memory while serving needs the opposite.)"
        ),
        (
            "Reducing --mem-fraction-static, the usual advice for out-of-memory: here it makes "
            "things worse."
        ),
        "sglang issues 322, 4330; model_runner.py 0.4.1 - 0.5.23",
    ),
    Failure(
        "oom_cuda_graph",
        ErrorKind.SERVER_OOM,
        "GPU memory ran out while CUDA graphs were captured.",
        "Lower --mem-fraction-static, --cuda-graph-max-bs (from 0.5.23 --cuda-graph-max-bs-decode) "
        "or both; with speculation a graph holds batch size x draft tokens.",
        "--disable-cuda-graph in a benchmark: it changes what is measured.",
        "sglang pull 3430, issue 4489; cuda_graph_runner.py",
    ),
    Failure(
        "oom_weights",
        ErrorKind.SERVER_OOM,
        (
            "GPU memory ran out while weights were loaded: they do not fit, or another process "
            "holds memory."
        ),
        (
            "Look at nvidia-smi before the launch. Use more GPUs (--tp-size) or a smaller "
            "quantisation."
        ),
        "Tuning --mem-fraction-static: it only sizes the memory that is used after the weights.",
        "torch.OutOfMemoryError before `Load weight end`",
    ),
    Failure(
        "cuda_oom",
        ErrorKind.SERVER_OOM,
        (
            "GPU memory ran out while serving: activations of a long prefill, logits, or graphs "
            "did not fit next to the KV cache."
        ),
        (
            "Lower --mem-fraction-static (for example by 0.05), --chunked-prefill-size or "
            "--max-running-requests."
        ),
        "Raising --mem-fraction-static, or retrying without a change.",
        "torch.OutOfMemoryError after `Memory pool end`; HIP says the same",
    ),
    Failure(
        "host_oom_kill",
        ErrorKind.SERVER_OOM,
        (
            "A process got SIGKILL, most often from the kernel: host RAM (or the container's "
            "memory limit) ran out, not GPU memory."
        ),
        "Look at `dmesg -T | grep -i oom` and the cgroup's memory.events; check --hicache-size x "
        "ranks, weights on tmpfs, docker --memory. Exit code 137 from docker is the same event.",
        "Lowering --mem-fraction-static: it sizes GPU memory, not host memory.",
        "sglang pull 20287; engine.py 0.4.1 - 0.5.23",
    ),
    Failure(
        "host_memory_short",
        ErrorKind.SERVER_OOM,
        (
            "Host memory is too small for what was requested: the hierarchical cache, pinned "
            "buffers, or the loading of weights."
        ),
        "Lower --hicache-ratio or --hicache-size (a size per rank), or free host memory.",
        "Adding swap: pinned memory cannot be swapped.",
        "memory_pool_host.py: `Not enough host memory available`",
    ),
    Failure(
        "workspace_too_small",
        ErrorKind.CONFIG,
        (
            "FlashInfer's workspace is too small for this batch: a buffer of fixed size, not the "
            "GPU's memory."
        ),
        "Raise SGLANG_FLASHINFER_WORKSPACE_SIZE (bytes; 384 MiB is the default), or lower "
        "--chunked-prefill-size or --max-running-requests.",
        "Changing --mem-fraction-static.",
        "flashinfer allocator.h; sglang global_config.py and environ.py",
    ),
    Failure(
        "kv_pool_exhausted",
        ErrorKind.SERVER_OOM,
        (
            "The KV cache had no room for the next step, and no running request was left that "
            "could be retracted."
        ),
        (
            "Lower --max-running-requests, raise --schedule-conservativeness or "
            "--mem-fraction-static, or shorten the requests."
        ),
        "Lowering --mem-fraction-static: that makes this pool smaller.",
        "RuntimeError `Prefill out of memory` and `Decode out of memory`, 0.2 - 0.5.23",
    ),
    Failure(
        "kv_pool_leak",
        ErrorKind.SERVER_EXITED,
        "SGLang's own check found lost KV slots: a bug in this version with these features.",
        (
            "Note version and arguments, update SGLang, or switch off what is new (speculation, "
            "overlap, hierarchical cache) one at a time."
        ),
        "Giving the KV cache more memory.",
        "scheduler `memory leak detected`, 0.4.1 - 0.5.23",
    ),
)

PORT_FAILURES = (
    Failure(
        "port_in_use",
        ErrorKind.SERVER_LAUNCH,
        (
            "Another process listens on the HTTP port, often an earlier server that is still "
            "running; SGLang notices only after it has loaded the weights."
        ),
        "End the other server or take another --port; test the port before the launch.",
        (
            "Believing `Application startup complete` or a health answer: the OTHER server may "
            "give it. Compare the model of /model_info."
        ),
        "uvicorn; sglang 0.5.9 binds after the model is loaded",
    ),
    Failure(
        "dist_port_in_use",
        ErrorKind.SERVER_LAUNCH,
        (
            "The port of --dist-init-addr (or one of the next ports) or of --nccl-port is in use "
            "on the head host."
        ),
        (
            "Give every job on a host its own --dist-init-addr or --nccl-port, and leave at least "
            "10 ports between jobs."
        ),
        (
            "Changing --port, which is a different port, or reporting the AttributeError that may "
            "follow as a bug."
        ),
        "server_args.py 0.5.9 - 0.5.23 (its `30 seconds` are 3); torch TCPStore",
    ),
    Failure(
        "dist_init_timeout",
        ErrorKind.SERVER_LAUNCH,
        (
            "Not all ranks met: a host did not start, cannot reach the head, or differs "
            "in --nnodes, --node-rank or --dist-init-addr."
        ),
        (
            "Look at the log of every host; check that the head's address and port are reachable, "
            "and NCCL_SOCKET_IFNAME/GLOO_SOCKET_IFNAME."
        ),
        "Only raising --dist-timeout while a host is missing.",
        (
            "torch.distributed.DistStoreError, `Timed out after … waiting for clients`; gloo "
            "connectFullMesh"
        ),
    ),
)

ARGUMENT_FAILURES = (
    Failure(
        "argument_error",
        ErrorKind.CONFIG,
        "The server rejected its arguments.",
        (
            "Edit the argument that the line names; `fleetctl lint` knows the spellings of each "
            "version."
        ),
        "Retrying: the launch fails in the same way on every host.",
        "argparse (exit code 2), server_args.py",
    ),
    Failure(
        "container_not_started",
        NEEDS_HOST_REPAIR,
        "The container runtime did not start the server's container.",
        (
            "Fix what its last line names: the image (pull it first), a mount, the GPUs "
            "(`nvidia-ctk`), the daemon, or the permissions of the user."
        ),
        "Treating this as a failure of SGLang, which never ran.",
        "docker-run(1) and podman-run(1): exit codes 125, 126 and 127",
    ),
    Failure(
        "spec_args_invalid",
        ErrorKind.CONFIG,
        "The server rejected this combination of speculative arguments.",
        "Edit the arguments that the line names; see `fleetctl lint`.",
        "Retrying, or blaming the host: the job itself is wrong.",
        (
            "server_args.py 0.5.9, arg_groups/speculative_hook.py and speculative/draft_utils.py "
            "0.5.23; sglang issue 38236"
        ),
    ),
    Failure(
        "spec_draft_missing",
        ErrorKind.CONFIG,
        (
            "--speculative-draft-model-path is missing: the target model was loaded a second time "
            "as its own draft."
        ),
        "Give an EAGLE3 draft that was trained for this target. Only models with MTP layers of "
        "their own (DeepSeek V3/R1/V4, GLM-4.5 and later, …) can speculate without a draft, with "
        "EAGLE or NEXTN.",
        "Adding memory or GPUs because the second copy ran out of memory.",
        "sglang issue 36528",
    ),
    Failure(
        "spec_draft_mismatch",
        ErrorKind.CONFIG,
        "The draft model does not fit the target: its sizes, vocabulary or architecture differ.",
        "Use the draft that was trained for this target, and EAGLE3 for an EAGLE-3 draft.",
        "Ignoring mismatched weights: the server would accept none of the draft tokens.",
        "draft model loading, size mismatch",
    ),
    Failure(
        "parallel_size_invalid",
        ErrorKind.CONFIG,
        "The model cannot be split into that many parts, or the sizes contradict each other.",
        (
            "Choose --tp-size/--dp-size/--ep-size/--pp-size that divide the heads, experts and "
            "quantisation blocks that the line names."
        ),
        "Trying on another host.",
        "layers/linear.py, fp8.py, server_args.py",
    ),
)

MODEL_FAILURES = (
    Failure(
        "hf_auth",
        ErrorKind.CONFIG,
        "This host has no Hugging Face token with access to the model.",
        "Accept the licence on the model's page and set HF_TOKEN for the agent (inside the "
        "container too). `401 … Repository Not Found` means the same for a private model. 403 "
        "means that the token is valid but has no access.",
        "Writing the token into the job file: use a secret instead.",
        "huggingface_hub issue 2586",
    ),
    Failure(
        "hf_unreachable",
        ErrorKind.SERVER_LAUNCH,
        "The model hub did not answer (network, proxy, rate limit or outage).",
        "Try again, or copy the model to local disk beforehand and set HF_HUB_OFFLINE=1.",
        "Letting every rank of every host download at once.",
        "huggingface_hub, requests: ConnectionError, timeouts, 429, 5xx",
    ),
    Failure(
        "model_not_found",
        ErrorKind.CONFIG,
        "The model path does not contain a model, or the repository does not exist.",
        (
            "Check the spelling, and that the folder is mounted on this host (inside the "
            "container) with config.json in it."
        ),
        "Retrying.",
        "transformers, huggingface_hub",
    ),
    Failure(
        "model_unsupported",
        ErrorKind.CONFIG,
        (
            "This version of SGLang (or transformers) does not know the model's architecture or "
            "quantisation, or needs --trust-remote-code."
        ),
        "Update SGLang, or add --trust-remote-code when the line asks for it.",
        "Renaming the architecture in config.json.",
        "models/registry.py, transformers",
    ),
    Failure(
        "weights_corrupt",
        ErrorKind.CONFIG,
        "A weight file is truncated, damaged or not the one that config.json describes.",
        (
            "Compare sizes with the repository and copy the file again (a Git LFS pointer is a "
            "text file of about 130 bytes)."
        ),
        "--load-format dummy, except to test the launch.",
        "safetensors, torch load_state_dict",
    ),
    Failure(
        "weight_load_incomplete",
        ErrorKind.SERVER_LAUNCH,
        (
            "The rank that complains is healthy: it finished loading and waited for ranks that did "
            "not finish."
        ),
        "Look for ranks or hosts without a `Load weight end` line: they are out of memory, dead, "
        "or read slow shared storage. Copy weights to local NVMe or raise --dist-timeout; newer "
        "versions have --weight-loader-prefetch-checkpoints.",
        "Blaming the rank that reports the problem, or judging by the log of one host.",
        "sglang issues 4503, 29268",
    ),
    Failure(
        "disk_full",
        NEEDS_HOST_REPAIR,
        "A disk of the host is full.",
        "Free space where the line says (model cache, /tmp, JIT caches).",
        "Retrying on this host before space is free.",
        "errno 28",
    ),
)
