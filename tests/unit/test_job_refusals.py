"""What a strict host refuses of a trial, what it lets pass, and that an open one refuses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_agent.core.admission.host_policy import (
    Policy,
    ServerDefaults,
    allow_defaults,
    with_defaults,
)
from fleet_agent.core.admission.policy_check import PathLookup, policy_violations
from fleet_knowledge.nccl.variables.known_variables import VARIABLES
from fleet_protos.trial_types import Container, EngineKind, EngineSpec

PYTHON = "/home/USER/ml-env/bin/python3"
LINKS = {
    "/home/USER/looks-fine": "/srv/evil",
    "/home/USER/ml-env/bin": "/home/USER/ml-env/bin",
    "/data/link": "/etc",
    "/data/models/link": "/srv/other",
    "/cluster": "/mnt/nfs7",
}
POLICY = Policy(
    is_open=False,
    python=(PYTHON,),
    images=("lmsysorg/sglang:*",),
    mounts=("/data", "/scratch/*"),
    env=("MY_*", "LD_LIBRARY_PATH"),
)
ENGINE = EngineSpec(kind=EngineKind.SGLANG, model_path="org/model", python=PYTHON)


def real(path: str) -> str:
    for link, place in LINKS.items():
        if path == link or path.startswith(f"{link}/"):
            return place + path[len(link) :]
    return path


LOOK = PathLookup(
    "/home/USER",
    real,
    lambda program: program if program.startswith("/") else f"/usr/bin/{program}",
    ("/var/lib/benchfleet",),
)


def keys(engine: EngineSpec, policy: Policy = POLICY, given: tuple[str, ...] = ()) -> list[str]:
    return [refusal.key for refusal in policy_violations(engine, given, policy, LOOK)]


def with_env(**env: str) -> EngineSpec:
    return replace(ENGINE, env=env)


def with_args(**args: Any) -> EngineSpec:
    return replace(ENGINE, args=args)


HOSTILE_ENV = {
    "LD_PRELOAD": "/tmp/evil.so", "LD_AUDIT": "x", "PYTHONPATH": "x", "PYTHONSTARTUP": "x.py", "BASH_ENV": "x", "PATH": "/tmp", "HOME": "x",
    "NCCL_NET_PLUGIN": "/tmp/evil.so", "NCCL_TUNER_PLUGIN": "../evil.so", "NCCL_PROFILER_PLUGIN": "~/evil.so", "NCCL_CONF_FILE": "x",
    "CUDA_INJECTION64_PATH": "evil.so", "NVTX_INJECTION64_PATH": "x", "SGLANG_PLUGINS": "evil", "SGLANG_EXTERNAL_MODEL_PACKAGE": "evil",
    "SGLANG_LOGGING_CONFIG_PATH": "log.json", "TRITON_CACHE_MANAGER": "evil:Cache", "TRITON_PTXAS_PATH": "evil", "TRITON_CACHE_DIR": "x",
    "TORCH_EXTENSIONS_DIR": "x", "FLASHINFER_EXTRA_CUDAFLAGS": "-ccbin evil", "OMP_TOOL_LIBRARIES": "evil.so", "HSA_TOOLS_LIB": "evil.so",
    "UCX_MODULE_DIR": "x", "UCX_GDB_COMMAND": "touch x", "HF_ENDPOINT": "https://evil", "HTTPS_PROXY": "x", "https_proxy": "x",
    "SSL_CERT_FILE": "x", "NVIDIA_VISIBLE_DEVICES": "all", "ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "CUDA_HOME": "x",
    "NCCL_DEBUG_FILE": "/etc/cron.d/evil", "NCCL_TOPO_DUMP_FILE": "../../up", "CUDA_COREDUMP_FILE": "/home/USER/.ssh/authorized_keys",
    "UCX_LOG_FILE": "file:/tmp/x", "HF_HOME": "/home/USER", "SGLANG_TORCH_PROFILER_DIR": "/var/lib/benchfleet/journal",
    "SGLANG_DUMPER_SERVER_PORT": "9000", "HF_DEBUG": "1", "BENCHFLEET_LAUNCH": "other/1", "FOO": "1", "GLIBC_TUNABLES": "x",
    "SGLANG_INKLING_FA4_USE_PIP": "1", "NCCL_RAS_ADDR": "0.0.0.0:28028", "MKL_VERBOSE_OUTPUT_FILE": "/data/link/passwd",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_ENV)
def test_a_variable_that_loads_code_writes_or_reaches_out_is_refused(name: str) -> None:
    assert keys(with_env(**{name: HOSTILE_ENV[name]})) == [f"engine.env.{name}"]


HARMLESS_ENV = {
    "NCCL_PROTO": "LL", "NCCL_ALGO": "allreduce:tree,ring;broadcast:ring", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    "NCCL_SOCKET_IFNAME": "^lo,docker",
    "NCCL_NET_PLUGIN": "none", "NCCL_TUNER_PLUGIN": "libnccl-tuner.so", "NCCL_DEBUG_FILE": "nccl.%h.%p", "NCCL_HOSTID": "a b",
    "SGLANG_ENABLE_JIT_DEEPGEMM": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8", "CUDA_LAUNCH_BLOCKING": "1", "HF_HUB_OFFLINE": "1",
    "HF_TOKEN": "secret://HF_TOKEN", "OMP_NUM_THREADS": "8", "KMP_AFFINITY": "granularity=fine,compact,1,0", "MKL_NUM_THREADS": "4",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
    "TRITON_PRINT_AUTOTUNING": "1", "FLASHINFER_CUDA_ARCH_LIST": "9.0a 10.0a", "UCX_TLS": "rc,cuda_copy", "GLOO_SOCKET_IFNAME": "eth0",
    "RCCL_MSCCL_ENABLE": "0", "HSA_ENABLE_SDMA": "0", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "MY_SWITCH": "x",
    "LD_LIBRARY_PATH": "/opt/nccl/lib", "SGLANG_TORCH_PROFILER_DIR": "/data/traces", "HF_HOME": "/scratch/me/hf",
    "NCCL_LL128_BUFFSIZE": "-2",
    "CUDA_COREDUMP_FILE": "/dev/null", "SGLANG_FLASHINFER_WORKSPACE_SIZE": "402653184",
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS_ENV)
def test_a_variable_that_tunes_or_that_the_owner_names_passes(name: str) -> None:
    assert keys(with_env(**{name: HARMLESS_ENV[name]})) == []


def test_every_documented_variable_of_nccl_passes_with_a_plain_number_or_is_one_that_loads_code() -> (
    None
):
    refused = {name for name in VARIABLES if keys(with_env(**{name: "1"}))}
    assert refused <= {"NCCL_CONF_FILE", "NCCL_RAS_ADDR", "NCCL_DEBUG_FILE"}


def test_a_pattern_of_the_owner_does_not_let_in_what_loads_code_but_its_name_does() -> None:
    engine = with_env(LD_PRELOAD="libtcmalloc.so")
    assert keys(engine, replace(POLICY, env=("*",))) == ["engine.env.LD_PRELOAD"]
    assert keys(engine, replace(POLICY, env=("LD_PRELOAD",))) == []


def test_what_the_host_itself_gives_its_servers_is_not_judged() -> None:
    assert keys(with_env(LD_PRELOAD="/opt/x.so"), given=("LD_PRELOAD",)) == []


HOSTILE_ARGS: dict[str, Any] = {
    "custom_weight_loader": ["evil.load"], "forward_hooks": '[{"hook_factory": "evil:f"}]', "sidecar": "touch", "config": "more.yaml",
    "enable_custom_logit_processor": True, "use_ray": True, "host": "0.0.0.0", "grpc_port": 1, "ssl_keyfile": "x", "kv_events_config": "{}",
    "dist_init_addr": "0.0.0.0:5000", "otlp_traces_endpoint": "evil:4317", "tool_server": "evil", "delete_ckpt_after_loading": True,
    "file_storage_path": "/etc/cron.d", "crash_dump_folder": "~/.ssh", "debug_tensor_dump_output_folder": "../../..", "download_dir": "/",
    "chat_template": "/etc/shadow", "export_metrics_to_file_dir": "/data/link", "log_requests_target": ["stdout", "~/.ssh"],
    "hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config": '{"p": {"q": "/etc/x"}}',
    "modelopt_export_path": "/srv/x",
    "model_loader_extra_config": '{"url": "s3://evil/x"}', "trust_remote_code": True, "tp": 8, "trust_remote": True, "no_such_thing": True,
    "tokenizer_path": "/etc/ssl", "speculative_draft_model_path": "s3://evil/model", "lora_paths": ["a=/var/lib/benchfleet/x"],
    "fastapi_root_path": "/etc", "disaggregation_mode": "prefill", "weight_cache_socket": "x", "sidecar_args": [],
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_ARGS)
def test_an_argument_that_loads_code_writes_listens_or_connects_is_refused(name: str) -> None:
    assert keys(with_args(**{name: HOSTILE_ARGS[name]})) == [f"engine.args.{name}"]


def test_a_flag_without_a_value_is_a_flag_that_is_set() -> None:
    assert keys(with_args(trust_remote_code=[])) == ["engine.args.trust_remote_code"]
    assert keys(with_args(trust_remote_code=False, delete_ckpt_after_loading=None)) == []


def test_the_arguments_of_a_usual_job_pass() -> None:
    args = {
        "tp_size": 8, "mem_fraction_static": 0.85, "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "org/draft",
        "served_model_name": "/what/ever", "chat_template": "/data/template.jinja", "lora_paths": ["a=org/adapter", "/data/lora"],
        "dist_init_addr": "127.0.0.1:5000", "constrained_json_whitespace_pattern": "[\n\t ]*", "crash_dump_folder": "dumps",
        "json_model_override_args": '{"rope_scaling": {"factor": 2}}', "download_dir": "/scratch/me/models", "attention_backend": "fa3",
    }  # fmt: skip
    assert keys(with_args(**args)) == []


def test_an_argument_that_the_owner_names_passes() -> None:
    assert (
        keys(
            with_args(crash_dump_folder="/srv/dumps"), replace(POLICY, args=("crash_dump_folder",))
        )
        == []
    )


PYTHONS = [
    (PYTHON, True),
    ("~/ml-env/bin/python3", True),
    ("/home/USER/ml-env/bin/python3.11", False),
    ("/home/USER/ml-env/bin/../../evil/bin/python3", False),
    ("/tmp/python3", False),
    ("python3", False),
    ("/bin/sh", False),
    ("", False),
]


@pytest.mark.parametrize(("python", "allowed"), PYTHONS)
def test_a_server_starts_only_with_a_python_that_is_allowed(python: str, allowed: bool) -> None:
    assert keys(replace(ENGINE, python=python)) == ([] if allowed else ["engine.python"])


def test_a_link_in_an_allowed_folder_leads_no_further_than_the_pattern() -> None:
    policy = replace(POLICY, python=("/home/USER/*/bin/python3",))
    assert keys(ENGINE, policy) == []
    assert keys(replace(ENGINE, python="/home/USER/looks-fine/bin/python3"), policy) == [
        "engine.python"
    ]


def test_an_owner_may_write_a_path_that_is_itself_behind_a_link() -> None:
    policy = replace(POLICY, python=("/cluster/env/bin/python3",), mounts=("/cluster/data",))
    engine = replace(
        ENGINE, python="/cluster/env/bin/python3", args={"crash_dump_folder": "/cluster/data/x"}
    )
    assert keys(engine, policy) == []


IMAGES = [
    ("lmsysorg/sglang:v0.5.9", True), ("lmsysorg/sglang", True), ("lmsysorg/sglang:latest@sha256:00", True), ("evil/sglang:v1", False),
    ("lmsysorg/sglang@sha256:00", False), ("docker.io/lmsysorg/sglang:v1", False), ("lmsysorg/sglang:v1/x", False),
]  # fmt: skip


@pytest.mark.parametrize(("image", "allowed"), IMAGES)
def test_a_server_starts_only_from_an_image_that_is_allowed(image: str, allowed: bool) -> None:
    engine = replace(ENGINE, python="", container=Container(image=image))
    assert keys(engine) == ([] if allowed else ["engine.container.image"])


MOUNTS = [
    ("/data/x", True), ("/data", True), ("/scratch/me:ro", True), ("/database", False), ("/", False), ("/etc", False),
    ("/data/../etc", False),
    ("/data/link", False), ("/var/run/docker.sock", False), ("/var", False), ("~/.ssh", False), ("~", False), ("/scratch", False),
]  # fmt: skip


@pytest.mark.parametrize(("source", "allowed"), MOUNTS)
def test_a_container_mounts_only_folders_that_are_allowed(source: str, allowed: bool) -> None:
    engine = replace(
        ENGINE, python="", container=Container(image="lmsysorg/sglang:v1", mounts={"/in": source})
    )
    assert keys(engine) == ([] if allowed else ["engine.container.mounts./in"])


RULING = [
    "/",
    "//etc",
    "/etc/ssl",
    "/home/USER",
    "/var/lib/benchfleet/artifacts",
    "/proc/1",
    "/home/USER/.ssh/id_ed25519",
]


@pytest.mark.parametrize("source", RULING)
def test_no_pattern_gives_away_what_rules_the_host_or_the_agent(source: str) -> None:
    engine = replace(
        ENGINE, python="", container=Container(image="lmsysorg/sglang:v1", mounts={"/in": source})
    )
    assert keys(engine, replace(POLICY, mounts=("**",))) == ["engine.container.mounts./in"]


MODELS = [
    ("org/model", True), ("/data/models/a", True), ("/data/models/a/b", True), ("other/model", False), ("/data/models/../x", False),
    ("/data/models/link/x", False), ("/data/modelsX", False), ("s3://b/org/model", False),
]  # fmt: skip


@pytest.mark.parametrize(("model", "allowed"), MODELS)
def test_models_are_confined_where_the_owner_names_some(model: str, allowed: bool) -> None:
    policy = replace(POLICY, models=("org/*", "/data/models"))
    assert keys(replace(ENGINE, model_path=model), policy) == ([] if allowed else ["model.path"])
    draft = replace(ENGINE, args={"speculative_draft_model_path": model, "trust_remote_code": True})
    assert keys(draft, policy) == ([] if allowed else ["engine.args.speculative_draft_model_path"])


def test_a_model_inside_a_container_is_judged_by_its_place_on_the_host() -> None:
    policy = replace(POLICY, models=("/data/models",))
    container = Container(
        image="lmsysorg/sglang:v1", mounts={"/m": "/data/models", "/n": "/data/other"}
    )
    engine = replace(ENGINE, python="", container=container)
    assert keys(replace(engine, model_path="/m/a"), policy) == []
    assert keys(replace(engine, model_path="/n/a"), policy) == ["model.path"]


URLS = [
    ("http://gpu07:30000", True), ("https://10.0.0.7/v1", True), ("http://169.254.169.254/latest", False), ("http://[fe80::1]:80", False),
    ("http://[::ffff:169.254.169.254]", False), ("http://metadata.google.internal", False), ("http://0.0.0.0:1", False),
    ("http://[fd00:ec2::254]", False),
]  # fmt: skip


@pytest.mark.parametrize(("url", "allowed"), URLS)
def test_an_external_server_is_no_service_that_only_the_host_can_ask(
    url: str, allowed: bool
) -> None:
    engine = EngineSpec(kind=EngineKind.EXTERNAL, model_path="m", url=url)
    assert keys(engine) == ([] if allowed else ["engine.url"])


def test_a_host_that_only_drives_load_launches_no_server() -> None:
    assert keys(ENGINE, replace(POLICY, load_only=True)) == ["engine"]


def test_an_open_agent_refuses_nothing_of_this() -> None:
    engine = replace(
        with_env(LD_PRELOAD="x"), args={"trust_remote_code": True}, python="/tmp/python3"
    )
    assert keys(engine, Policy()) == []


# Defaults of the host


def test_the_jobs_variables_win_over_the_hosts() -> None:
    defaults = ServerDefaults(PYTHON, "", {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_PROTO": "Simple"})
    engine = with_defaults(replace(ENGINE, python="", env={"NCCL_PROTO": "LL"}), defaults)
    assert (engine.python, engine.env) == (
        PYTHON,
        {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_PROTO": "LL"},
    )


def test_a_variable_that_the_job_removes_is_not_taken_from_the_host() -> None:
    defaults = ServerDefaults(PYTHON, "", {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_PROTO": "Simple"})
    engine = with_defaults(replace(ENGINE, env_removed=("NCCL_PROTO", "UNKNOWN")), defaults)
    assert engine.env == {"NCCL_SOCKET_IFNAME": "eth0"}


def test_the_hosts_image_stands_in_where_a_job_names_neither_python_nor_image() -> None:
    defaults = ServerDefaults(image="lmsysorg/sglang:v1")
    assert (
        with_defaults(replace(ENGINE, python=""), defaults).container.image == "lmsysorg/sglang:v1"
    )
    assert with_defaults(ENGINE, defaults).container.image == ""
    assert with_defaults(replace(ENGINE, python=""), ServerDefaults()).python == "python3"


def test_a_default_of_the_host_is_allowed_there() -> None:
    defaults = ServerDefaults("/opt/sglang/bin/python", "")
    engine = with_defaults(replace(ENGINE, python=""), defaults)
    assert keys(engine, allow_defaults(Policy(is_open=False), defaults)) == []
