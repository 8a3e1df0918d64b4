"""Sorts the variables of a pasted file into variables for the server, secrets, GPU ids, and
variables that only the shell needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fleet_controller.importers.secret_masking import is_secret
from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.sources.kubernetes import GROUP_SIZE
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_knowledge.nccl.variable_rules import files_needed
from fleet_knowledge.nccl.variables.known_variables import find_variable

SECRET = "secret://"
_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
)
_SHELL_VARIABLES = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "OLDPWD",
        "TERM",
        "DISPLAY",
        "SHLVL",
        "PS1",
        "IFS",
        "MAIL",
    }
)
_LAUNCHER_VARIABLES = frozenset({
    "NVIDIA_DRIVER_CAPABILITIES", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK",
    "NODE_RANK", "NNODES", "PORT", "HOST",
})  # fmt: skip
# Names that are meant for the server even if a script forgot to export them.
_SERVER_VARIABLE = re.compile(
    r"(?:NCCL|RCCL|SGLANG|SGL|CUDA|CUBLAS|TORCH|TORCHINDUCTOR|PYTORCH|HF|HUGGINGFACE|TRANSFORMERS"
    r"|TRITON|VLLM|FLASHINFER|UCX|GLOO|OMP|MKL|KMP|HIP|HSA|ROCM|AITER|NVSHMEM|MC|MOONCAKE|DG|DEEPEP"
    r"|TP|TOKENIZERS|XDG|PYTHON|MODELSCOPE|OPENBLAS|NVTE|IBV|FI|SAFETENSORS)_\w+"
    r"|PYTHON\w+|LD_LIBRARY_PATH|LD_PRELOAD|http_proxy|https_proxy|HTTP_PROXY|HTTPS_PROXY|NO_PROXY"
    r"|no_proxy"
)
_NOT_SERVER_VARIABLES = frozenset(
    {
        "TP_SIZE",
        "HF_MODEL",
        "HF_MODEL_PATH",
        "CUDA_VERSION",
        "SGLANG_VERSION",
        "SGLANG_PORT",
        "SGLANG_HOST",
    }
)
_WRITTEN_FILES = ("NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_DEBUG_FILE")
_SELF = r"(?::?\$\{?%(name)s(?::?\+:?\$\{?%(name)s\}?)?\}?:?)"
_OWN_CONNECTIONS = "SGLang always sets this variable itself (4 in 0.4.6, 8 in 0.5.9 and 0.5.23)"


@dataclass(slots=True)
class ServerEnvironment:
    """The variables of the server, the ids of its GPUs, and the names and texts of its secrets.

    `kept` maps a variable's name to its value. The value of a secret is `secret://NAME`.
    """

    kept: dict[str, SourceText] = field(default_factory=dict)
    gpu_ids: tuple[str, ...] = ()
    gpu_line: int = 0
    secret_names: dict[str, None] = field(default_factory=dict)
    secret_texts: set[str] = field(default_factory=set)


def read_environment(
    env: Mapping[str, SourceText], in_container: bool, notes: FindingCollector
) -> ServerEnvironment:
    """Sort the variables of one launch."""
    environment = ServerEnvironment()
    for name, value in env.items():
        if name == GROUP_SIZE:
            continue
        if name in _DEVICES:
            _add_devices(environment, name, value, notes)
        elif is_secret(name, value.text) or value.text.startswith(SECRET):
            _add_secret(environment, name, value, notes)
        elif not in_container and not value.is_known and not _SERVER_VARIABLE.fullmatch(name):
            message = (
                f"{name} is left out: its value is not in the file, and SGLang does not read it"
            )
            notes.info("dropped", value.line, message, "", name)
        elif name in _SHELL_VARIABLES or name in _LAUNCHER_VARIABLES:
            notes.info(
                "dropped",
                value.line,
                f"{name} is left out: the agent sets it for the server",
                "",
                name,
            )
        else:
            _add_variable(environment, name, value, in_container, notes)
    return environment


def unexported_server_variables(
    unexported: Mapping[str, SourceText],
    notes: FindingCollector,
    everything: bool = False,
    expanded: Collection[str] = (),
) -> dict[str, SourceText]:
    """Return the variables that a script sets without `export` although only a server reads them.
    With `everything`, return all variables. This is for a file that only sets variables.

    A variable that the script itself expands belongs to the script, unless NCCL knows the name.
    """
    found = {}
    for name, value in unexported.items():
        if everything and name not in _SHELL_VARIABLES:
            found[name] = value
        elif is_server_variable(name) and (name not in expanded or find_variable(name)):
            message = (
                f"{name} is set without `export`, so a shell would not pass it to the server; the "
                "job includes it"
            )
            notes.warn(
                "not_exported",
                value.line,
                message,
                f"export {name}, or remove it from the job",
                name,
            )
            found[name] = value
    return found


def is_server_variable(name: str) -> bool:
    """Return True if a server reads variables with this kind of name."""
    return bool(_SERVER_VARIABLE.fullmatch(name)) and name not in _NOT_SERVER_VARIABLES


def _add_devices(
    environment: ServerEnvironment, name: str, value: SourceText, notes: FindingCollector
) -> None:
    ids = (
        tuple(part.strip() for part in value.text.split(",") if part.strip())
        if value.is_known
        else ()
    )
    if name.startswith("NVIDIA") and (not ids or ids[0] in ("all", "none", "void")):
        return
    environment.gpu_ids, environment.gpu_line = ids or environment.gpu_ids, value.line
    hint = "the agent chooses free GPUs, as many as engine.gpus says"
    notes.info(
        "dropped",
        value.line,
        f"{name}={value.text[:60]} is left out: the agent sets the GPUs of each launch",
        hint,
        name,
    )


def _add_secret(
    environment: ServerEnvironment, name: str, value: SourceText, notes: FindingCollector
) -> None:
    environment.secret_names[name] = None
    if not value.text.startswith(SECRET):
        environment.secret_texts.add(value.text)
    environment.kept[name] = SourceText(f"{SECRET}{name}", value.line)
    message = (
        f"{name} is a secret: its value is not stored, and the job refers to it as {SECRET}{name}"
    )
    notes.info(
        "secret", value.line, message, "put the value into the secrets file of each host", name
    )


def _add_variable(
    environment: ServerEnvironment,
    name: str,
    value: SourceText,
    in_container: bool,
    notes: FindingCollector,
) -> None:
    own = re.compile(_SELF % {"name": re.escape(name)})
    if name in value.unknown and len(value.unknown) == 1 and value.text != f"${name}":
        value = replace(value, text=own.sub(":", value.text).strip(":"), unknown=())
        message = (
            f"{name} extends the shell's own value, which the server does not inherit: only "
            f"`{value.text[:80]}` is kept"
        )
        notes.warn(
            "not_inherited",
            value.line,
            message,
            "if the server needs the shell's value too, write the whole value into the job",
            name,
        )
    if name.endswith("PATH"):
        value = replace(value, text=value.text.strip(":"))
    environment.kept[name] = value
    inside = " (inside the container)" if in_container else ""
    if "/" in value.text and (name == "LD_PRELOAD" or files_needed({name: value.text})):
        message = f"{name}={value.text[:100]} must exist on every host{inside}"
        hint = "copy the file to every host before the job runs" + (
            ", and mount it" if in_container else ""
        )
        notes.warn("must_exist_on_host", value.line, message, hint, name)
    elif name in _WRITTEN_FILES:
        notes.info(
            "writes_file",
            value.line,
            f"{name}: NCCL writes `{value.text[:80]}` on every host{inside}",
            "",
            name,
        )
    if name == "CUDA_DEVICE_MAX_CONNECTIONS":
        notes.warn(
            "no_effect",
            value.line,
            f"{name} has no effect: {_OWN_CONNECTIONS}",
            "remove it",
            name,
        )
