"""Sorts one launch into what a job can express and what it cannot, such as host, port and
secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_controller.importers.find_launches import image_version
from fleet_controller.importers.secret_masking import (
    holds_secret,
    is_maskable,
    is_secret_name,
    is_secret_option,
)
from fleet_controller.importers.server_environment import ServerEnvironment
from fleet_controller.importers.server_options import NO_VALUE
from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.sources.docker_run import with_tilde
from fleet_controller.importers.sources.launch_values import (
    LaunchContainer,
    ServerLaunch,
    ServerOption,
)
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_knowledge.sglang.parallelism import count_needed_gpus

_DEFAULT_PORT = 30000
_SEVERAL_HOSTS = ("nnodes", "node_rank", "dist_init_addr")
_LEFT_OUT = {
    "host": "the agent sets the address of each launch",
    "port": (
        "the agent gives each launch its own port, so that another server cannot answer in its "
        "place"
    ),
    "nccl_port": "each launch chooses its own ports",
    "base_gpu_id": "the agent sets the GPUs of each launch",
    "gpu_id_step": "the agent sets the GPUs of each launch",
    "ssl_keyfile": "the server is used on its own host, without TLS",
    "ssl_certfile": "the server is used on its own host, without TLS",
    "ssl_ca_certs": "the server is used on its own host, without TLS",
    "help": "this option only prints help and starts no server",
    "numa_node": "with engine.cpu_binding, the agent binds the server by the host's topology",
}
_ARITHMETIC = "shell arithmetic"


@dataclass(slots=True)
class JobDraft:
    """The content of the future job. `args` maps SGLang's argument names to typed values. An
    unknown value stays text with `$NAME` in it.
    """

    entry: str = ""
    entry_spelling: str = ""
    entry_line: int = 0
    model_path: SourceText | None = None
    python: SourceText | None = None
    container: LaunchContainer | None = None
    version: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, SourceText] = field(default_factory=dict)
    gpu_ids: tuple[str, ...] = ()
    gpus: int | None = None
    server_port: int | None = None
    probe_port: int | None = None
    hosts: int = 1
    secret_names: dict[str, None] = field(default_factory=dict)
    secret_texts: set[str] = field(default_factory=set)
    needs: dict[str, None] = field(default_factory=dict)
    unfilled: dict[str, int] = field(
        default_factory=dict
    )  # key of the job that must be filled in → line
    not_read: set[str] = field(
        default_factory=set
    )  # names in `args` that are placeholders in the job
    lines: dict[str, int] = field(default_factory=dict)  # args.NAME, env.NAME, model.path, … → line


def draft_job(
    launch: ServerLaunch,
    environment: ServerEnvironment,
    python: SourceText | None,
    notes: FindingCollector,
) -> JobDraft:
    """Return the draft of the job, and report everything in the launch that the job leaves out."""
    draft = JobDraft(
        launch.entry.kind,
        launch.entry.spelling,
        launch.entry.line,
        container=launch.start.container,
        python=launch.entry.python,
    )
    if python is not None and (draft.python is None or "/" not in draft.python.text):
        draft.python = python
    if draft.python is not None:
        draft.python = with_tilde(draft.python)
    draft.version = image_version(draft.container.image.text) if draft.container else ""
    for option in launch.options.values():
        _add_option(draft, option, notes)
    _set_hosts(draft, launch.options, notes)
    _request_values(draft, launch, environment, notes)
    set_environment(draft, environment)
    _drop_api_key(draft, launch)
    _set_ports(draft, launch.options.get("port"))
    _set_gpus(draft, launch, environment, notes)
    _check_model(draft, launch, notes)
    return draft


def set_environment(draft: JobDraft, environment: ServerEnvironment) -> None:
    """Set the variables of the server."""
    draft.env = dict(environment.kept)
    draft.lines.update({f"env.{name}": value.line for name, value in environment.kept.items()})
    draft.secret_names.update(environment.secret_names)
    draft.secret_texts |= environment.secret_texts


def _add_option(draft: JobDraft, option: ServerOption, notes: FindingCollector) -> None:
    name = option.name
    if is_secret_option(name) or (isinstance(option.value, str) and holds_secret(option.value)):
        _add_secret(draft, option, notes)
    elif name in _LEFT_OUT:
        shown = "" if option.value is True else f" {str(option.value)[:60]}"
        notes.info(
            "dropped",
            option.line,
            f"{option.spelling or name}{shown} is left out: {_LEFT_OUT[name]}",
            "",
            name,
        )
    elif name == "model_path":
        draft.model_path = option.source or SourceText(str(option.value), option.line)
        draft.lines["model.path"] = option.line
    elif name not in _SEVERAL_HOSTS:
        draft.args[name] = option.value
        draft.lines[f"args.{name}"] = option.line
        _report_option(option, notes)


def _add_secret(draft: JobDraft, option: ServerOption, notes: FindingCollector) -> None:
    text = str(option.value)
    draft.secret_names[option.spelling or option.name] = None
    draft.secret_texts |= {text} if is_maskable(text) else set()
    hint = "the server listens on loopback, where only its host reaches it; /health needs no key"
    message = f"{option.spelling} is a secret: it is left out of the job and not stored"
    notes.info("secret", option.line, message, hint, f"args.{option.name}")


def _drop_api_key(draft: JobDraft, launch: ServerLaunch) -> None:
    """Drop a variable that only holds the API key, because the key itself is left out."""
    for option in launch.options.values():
        if not is_secret_option(option.name) or option.source is None:
            continue
        for name, value in launch.env.items():
            if is_secret_name(name) and (
                name in option.source.unknown or value.text == option.source.text
            ):
                draft.env.pop(name, None)
                draft.lines.pop(f"env.{name}", None)


def _report_option(option: ServerOption, notes: FindingCollector) -> None:
    if option.name == "disaggregation_mode" and option.value in ("prefill", "decode"):
        half = option.value
        message = (
            f"this is the {half} server of a disaggregated pair: it cannot answer requests alone"
        )
        hint = (
            "start the pair by hand, and measure its router with `engine: {kind: external, url: …}`"
        )
        notes.error("not_supported", option.line, message, hint, f"args.{option.name}")
    elif option.name == "config":
        config_file = str(option.value)[:80]
        message = f"the options in `{config_file}` are not part of the pasted text"
        notes.warn(
            "not_supported",
            option.line,
            message,
            "put the file on every host, or write its options into engine.args",
            "args.config",
        )
    elif isinstance(option.value, str) and option.value.startswith(("/", "~/")) and option.is_known:
        message = f"{option.spelling} {option.value[:100]} must exist on every host"
        notes.info("must_exist_on_host", option.line, message, "", f"args.{option.name}")


def _set_hosts(
    draft: JobDraft, options: Mapping[str, ServerOption], notes: FindingCollector
) -> None:
    nodes = options.get("nnodes")
    if nodes is not None:
        draft.hosts = (
            nodes.value if isinstance(nodes.value, int) and not isinstance(nodes.value, bool) else 1
        )
        draft.lines["engine.nodes"] = nodes.line
    if nodes is not None and not nodes.is_known and nodes.source is not None:
        _request_value(draft, "engine.nodes", nodes.source, nodes.spelling, notes)
    for name in _SEVERAL_HOSTS:
        option = options.get(name)
        if option is None or (name == "nnodes" and not option.is_known):
            continue
        counted = "engine.nodes replaces it" if draft.hosts > 1 else "the server is on one host"
        why = (
            counted if name == "nnodes" else "the agents set this option on each host of the server"
        )
        notes.info(
            "dropped",
            option.line,
            f"{option.spelling} {str(option.value)[:60]} is left out: {why}",
            "",
            name,
        )


def _request_values(
    draft: JobDraft, launch: ServerLaunch, environment: ServerEnvironment, notes: FindingCollector
) -> None:
    """Report every value that the file does not contain, in the order of the file."""
    for option in launch.options.values():
        if (
            option.source is None
            or option.source.is_known
            or (option.spelling or option.name) in draft.secret_names
        ):
            continue
        key = "model.path" if option.name == "model_path" else f"args.{option.name}"
        if key in draft.lines:
            _request_value(draft, key, option.source, option.spelling, notes)
        draft.needs.update(dict.fromkeys(option.source.unknown))
    for word in launch.loose:
        _request_options(draft, word, notes)
    for name, value in environment.kept.items():
        _request_value(draft, f"env.{name}", value, name, notes)
    _request_paths(draft, notes)


def _request_paths(draft: JobDraft, notes: FindingCollector) -> None:
    if draft.python is not None:
        _request_value(draft, "engine.python", draft.python, "the path of Python", notes)
    if draft.container is not None:
        _request_value(
            draft, "engine.container.image", draft.container.image, "the name of the image", notes
        )
        for inside, host in draft.container.mounts.items():
            _request_value(
                draft, f"engine.container.mounts.{inside}", host, "the path of a mount", notes
            )


def _request_options(draft: JobDraft, word: SourceText, notes: FindingCollector) -> None:
    """Add a placeholder to the job for a variable that may hold whole options."""
    name = (
        word.unknown[0].lower()
        if word.unknown and word.unknown[0].isidentifier()
        else "more_options"
    )
    draft.needs.update(dict.fromkeys(word.unknown))
    draft.unfilled[f"args.{name}"] = draft.lines[f"args.{name}"] = word.line
    draft.args[name] = _placeholder(word, name)
    draft.not_read.add(name)
    message = f"`{word.text[:60]}` may contain more options, and the file does not show them"
    notes.error(
        "needs_value",
        word.line,
        message,
        "paste the line that sets the variable, or write its options into engine.args",
        f"args.{name}",
    )


def _request_value(
    draft: JobDraft, key: str, value: SourceText, spelling: str, notes: FindingCollector
) -> None:
    if value.is_known:
        return
    draft.needs.update(dict.fromkeys(value.unknown))
    draft.unfilled[key] = value.line
    if value.unevaluated[:1] == (NO_VALUE,):
        notes.error(
            "value_missing",
            value.line,
            f"{spelling} has no value",
            f"give {spelling} a value, or remove {spelling}",
            key,
        )
    elif value.unevaluated:
        kind = value.unevaluated[0]
        wanted = "the number" if kind == _ARITHMETIC else "its value"
        message = f"{kind} in {spelling} is not evaluated: `{value.text[:80]}`"
        notes.error("not_supported", value.line, message, f"write {wanted} instead", key)
    else:
        names = ", ".join(f"`${name}`" for name in value.unknown)
        first_name = value.unknown[0]
        hint = (
            f"set {first_name} in the file before the command, or fill in the value in the job"
            if first_name.isidentifier()
            else "write the value into the job"
        )
        notes.error(
            "needs_value", value.line, f"{names} in {spelling} has no value in this file", hint, key
        )
    name = key.rpartition(".")[2]
    if key == "model.path" and not value.text:
        draft.model_path = SourceText("$MODEL", value.line, ("MODEL",))
    elif key.startswith("args."):
        draft.args[name] = _placeholder(value, name)
        draft.not_read |= {name} if value.unevaluated else set()


def _placeholder(value: SourceText, name: str) -> str:
    """Return what the job contains until the value is filled in: the text with `$NAME` as written,
    or a name made from the option's name.
    """
    return f"${{{name.upper()}}}" if value.unevaluated else value.text


def _set_ports(draft: JobDraft, option: ServerOption | None) -> None:
    port = _DEFAULT_PORT if option is None else option.value
    draft.server_port = port if isinstance(port, int) and not isinstance(port, bool) else None
    mapped = draft.container.ports.get(str(draft.server_port), "") if draft.container else ""
    draft.probe_port = int(mapped) if mapped.isdecimal() else draft.server_port


def _set_gpus(
    draft: JobDraft, launch: ServerLaunch, environment: ServerEnvironment, notes: FindingCollector
) -> None:
    draft.gpu_ids = environment.gpu_ids
    draft.gpu_ids = draft.gpu_ids or (draft.container.gpu_ids if draft.container else ())
    sizes = ("tp_size", "pp_size", "dp_size")
    asked = count_needed_gpus(draft.args) // max(draft.hosts, 1)
    given = len(draft.gpu_ids) or (draft.container.gpu_count if draft.container else None)
    is_sure = all(f"args.{name}" not in draft.unfilled for name in sizes)
    draft.gpus = asked if is_sure else given
    if is_sure and given is not None and given < asked:
        line = environment.gpu_line or launch.start.line
        message = f"the launch has {given} GPUs, but its parallel sizes need {asked}"
        notes.warn(
            "gpus_mismatch",
            line,
            message,
            "lower tp_size, or give the server more GPUs",
            "engine.gpus",
        )


def _check_model(draft: JobDraft, launch: ServerLaunch, notes: FindingCollector) -> None:
    path = draft.model_path
    if path is None:
        message = "the command names no model: `--model-path` is missing"
        notes.error(
            "needs_value",
            launch.entry.line,
            message,
            "add `--model-path`, or fill in model.path in the job",
            "model.path",
        )
        draft.unfilled["model.path"] = launch.entry.line
        draft.needs["MODEL"] = None
        return
    if not path.is_known:
        return
    if draft.container is None and path.text.startswith(("/", "~/", "./")):
        notes.info(
            "must_exist_on_host",
            path.line,
            f"the model `{path.text[:100]}` must exist on every host",
            "",
            "model.path",
        )
    elif (
        draft.container is not None
        and path.text.startswith("/")
        and not _is_mounted(path.text, draft.container.mounts)
    ):
        message = f"no mount brings the model `{path.text[:100]}` into the container"
        hint = (
            "the agent mounts the host's folder of that name; if the model is in another folder, "
            "write that folder into engine.container.mounts"
        )
        notes.warn("must_exist_on_host", path.line, message, hint, "model.path")


def _is_mounted(path: str, mounts: Iterable[str]) -> bool:
    return any(path == inside or path.startswith(f"{inside.rstrip('/')}/") for inside in mounts)
