"""Lists the arguments of SGLang's server that load code, name models, open ports, connect to
addresses, delete files or write files.

Sources: sglang/srt/server_args.py, utils/hf_transformers_utils.py, model_loader/, managers/ and
entrypoints/ of 0.4.1 - 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.security.path_patterns import addresses_in

# Rejected with any value: argument → what it makes the server do
_CODE: Mapping[str, str] = {
    "custom_sigquit_handler": "names Python code that is called",
    "custom_weight_loader": "names Python code that is imported",
    "enable_custom_logit_processor": "runs code that comes with requests",
    "forward_hooks": "names Python code that is imported",
    "sidecar": "starts a second program next to the server",
    "sidecar_args": "passes arguments to a second program next to the server",
    "config": "names a file of further arguments, which are not checked",
    "use_ray": "starts the server through Ray, whose processes the agent does not own",
    "warmups": "names Python functions that are called",
    "msprobe_dump_config": "names a file that decides which files are written",
    "model_config_parser": "names code that is loaded",
    "trust_request_chat_template": "runs templates that come with requests",
}
_LISTENS: Mapping[str, str] = {
    **dict.fromkeys(
        ("host", "port", "grpc_mode", "grpc_port", "smg_grpc_mode", "smg_http_sidecar_port"),
        "opens a port",
    ),
    **dict.fromkeys(
        ("disaggregation_bootstrap_port", "encoder_bootstrap_port", "engine_info_bootstrap_port"),
        "opens a port",
    ),
    **dict.fromkeys(
        (
            "decoupled_spec_bind_endpoint",
            "load_publish_endpoint",
            "gated_launch_port",
            "kv_events_config",
        ),
        "opens a port",
    ),
    "disaggregation_mode": "opens ports for other servers",
    **dict.fromkeys(
        (
            "ssl_certfile",
            "ssl_keyfile",
            "ssl_keyfile_password",
            "ssl_ca_certs",
            "enable_ssl_refresh",
        ),
        "makes it speak TLS",
    ),
    "remote_instance_weight_loader_start_seed_via_transfer_engine": (
        "offers its weights to other hosts"
    ),
    "weight_cache_socket": "names a socket",
    "forward_pass_metrics_ipc_name": "names a socket",
}
_CONNECTS: Mapping[str, str] = {
    name: "connects to an address"
    for name in (
        *(
            "decoupled_spec_connect_endpoints",
            "encoder_register_urls",
            "encoder_urls",
            "otlp_traces_endpoint",
            "oltp_traces_endpoint",
        ),
        *(
            "pdlb_url",
            "tool_server",
            "remote_instance_weight_loader_seed_instance_ip",
            "modelexpress_config",
        ),
    )
}
_DESTROYS: Mapping[str, str] = {"delete_ckpt_after_loading": "deletes the model's files"}
_REFUSED = {**_CODE, **_LISTENS, **_CONNECTS, **_DESTROYS}

# Models, and what is read like one: a Hugging Face name or a path, some as NAME=PATH
MODEL_ARGUMENTS = (
    *(
        "model_path",
        "tokenizer_path",
        "speculative_draft_model_path",
        "speculative_token_map",
        "lora_paths",
        "uno_lora_path",
    ),
    *(
        "kt_weight_path",
        "kt_amx_weight_path",
        "modelopt_checkpoint_restore_path",
        "quantization_param_path",
        "ds_channel_config_path",
    ),
)
# Values in which a slash does not mean a path
NOT_PATHS = (
    "served_model_name",
    "weight_version",
    "constrained_json_whitespace_pattern",
    "api_key",
    "admin_api_key",
)
MODEL_CODE_ARGUMENTS = ("trust_remote_code",)
# Where the ranks of a server connect; for a server on one host that must be this host.
RENDEZVOUS_ARGUMENTS = ("dist_init_addr",)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that an argument names. `name` does not include the `NAME=` before an adapter."""

    argument: str
    name: str


def argument_risk(name: str, value: Any) -> str:
    """Return what an argument makes a server do beyond serving, in words that follow the argument's
    name. Return an empty text if there is no risk.

    Paths and models are checked elsewhere.
    """
    if value is False or value is None:
        return ""
    if name in _REFUSED:
        return _REFUSED[name]
    if name == "hicache_storage_backend" and value == "dynamic":
        return "dynamic names Python code that is imported"
    if name in RENDEZVOUS_ARGUMENTS and str(value).rpartition(":")[0] not in LOOPBACK:
        return "lets the server listen at an address of the network"
    has_address = (
        name not in MODEL_ARGUMENTS and name not in NOT_PATHS and bool(addresses_in(value))
    )
    return "holds an address to connect to or to listen at" if has_address else ""


def models_in(args: Mapping[str, Any]) -> tuple[NamedModel, ...]:
    """Return every model that the arguments name."""
    return tuple(
        NamedModel(name, text) for name in MODEL_ARGUMENTS for text in _names(args.get(name))
    )


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return tuple(
            text
            for key, entry in value.items()
            if key != "lora_name" and isinstance(entry, str)
            for text in _names(entry)
        )
    if isinstance(value, list | tuple):
        return tuple(text for entry in value for text in _names(entry))
    if not isinstance(value, str) or not value:
        return ()
    adapter, equals, path = value.partition("=")
    return (path,) if equals and "/" not in adapter else (value,)
