"""Owns what of one launch is carried into a job, and tells what is not: host, port, several hosts, secrets, unknown values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_controller.core.plan import needed_gpus
from fleet_controller.pasted.environment import Environment
from fleet_controller.pasted.launch import Box, Launch, Option
from fleet_controller.pasted.notes import Notes
from fleet_controller.pasted.secrets import holds_secret, is_maskable, is_secret_option
from fleet_controller.pasted.starts import image_version
from fleet_controller.pasted.variables import Argument

_DEFAULT_PORT = 30000
_SEVERAL_HOSTS = ("nnodes", "node_rank", "dist_init_addr")
_LEFT_OUT = {
    "host": "the agent gives each launch its own address",
    "port": "the agent gives each launch its own port, so that another server cannot answer in its place",
    "nccl_port": "the agent leaves each launch its own ports",
    "base_gpu_id": "the agent gives each launch its GPUs",
    "gpu_id_step": "the agent gives each launch its GPUs",
    "ssl_keyfile": "the server is reached on the host itself, without TLS",
    "ssl_certfile": "the server is reached on the host itself, without TLS",
    "ssl_ca_certs": "the server is reached on the host itself, without TLS",
    "numa_node": "the agent binds the server by the host's topology where engine.cpu_binding says so",
}
_ARITHMETIC = "shell arithmetic"


@dataclass(slots=True)
class Carried:
    """What the job is made of. `args` holds typed values by SGLang's names, unknown ones as the text with `$NAME` in it."""

    entry: str = ""
    entry_spelling: str = ""
    model_path: Argument | None = None
    python: Argument | None = None
    box: Box | None = None
    version: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Argument] = field(default_factory=dict)
    gpu_ids: tuple[str, ...] = ()
    gpus: int | None = None
    server_port: int | None = None
    probe_port: int | None = None
    hosts: int = 1
    secret_names: dict[str, None] = field(default_factory=dict)
    secret_texts: set[str] = field(default_factory=set)
    needs: dict[str, None] = field(default_factory=dict)
    unfilled: dict[str, int] = field(default_factory=dict)  # key of the job that must be filled in → line
    not_read: set[str] = field(default_factory=set)  # names in `args` that only hold a place in the job
    lines: dict[str, int] = field(default_factory=dict)  # args.NAME, env.NAME, model.path, … → line


def carry(launch: Launch, environment: Environment, python: Argument | None, notes: Notes) -> Carried:
    """Sort one launch into what a job says and what is told instead."""
    made = Carried(launch.entry.kind, launch.entry.spelling, box=launch.start.box, python=launch.entry.python)
    if python is not None and (made.python is None or "/" not in made.python.text):
        made.python = python
    made.version = image_version(made.box.image.text) if made.box else ""
    for option in launch.options.values():
        _option(made, option, notes)
    _several_hosts(made, launch.options, notes)
    _needs(made, launch, environment, notes)
    take_environment(made, environment)
    _ports(made, launch.options.get("port"))
    _gpus(made, launch, environment, notes)
    _model(made, launch, notes)
    return made


def take_environment(made: Carried, environment: Environment) -> None:
    """The variables of the server."""
    made.env = dict(environment.kept)
    made.lines.update({f"env.{name}": value.line for name, value in environment.kept.items()})
    made.secret_names.update(environment.secret_names)
    made.secret_texts |= environment.secret_texts


def _option(made: Carried, option: Option, notes: Notes) -> None:
    name = option.name
    if is_secret_option(name) or (isinstance(option.value, str) and holds_secret(option.value)):
        _secret(made, option, notes)
    elif name in _LEFT_OUT:
        shown = "" if option.value is True else f" {option.value}"
        notes.info("dropped", option.line, f"{option.spelling or name}{shown} is left out: {_LEFT_OUT[name]}", "", name)
    elif name == "model_path":
        made.model_path = option.source or Argument(str(option.value), option.line)
        made.lines["model.path"] = option.line
    elif name not in _SEVERAL_HOSTS:
        made.args[name] = option.value
        made.lines[f"args.{name}"] = option.line
        _told_option(option, notes)


def _secret(made: Carried, option: Option, notes: Notes) -> None:
    text = str(option.value)
    made.secret_names[option.spelling or option.name] = None
    made.secret_texts |= {text} if is_maskable(text) else set()
    hint = "nothing but the agent reaches the server on the host's loopback; /health is open without it"
    notes.info("secret", option.line, f"{option.spelling} is a secret: it is left out of the job and written nowhere", hint, f"args.{option.name}")


def _told_option(option: Option, notes: Notes) -> None:
    if option.name == "disaggregation_mode" and option.value in ("prefill", "decode"):
        message = f"this is the {option.value} half of a disaggregated pair: it answers no request alone"
        hint = "start the pair by hand, and measure it behind its router as engine: {kind: external, url: …}"
        notes.error("not_supported", option.line, message, hint, f"args.{option.name}")
    elif option.name == "config":
        message = f"options in `{str(option.value)[:80]}` are not in what was pasted"
        notes.warn("not_supported", option.line, message, "write them into engine.args; the file must exist on every host", "args.config")
    elif isinstance(option.value, str) and option.value.startswith(("/", "~/")) and option.is_known:
        message = f"{option.spelling} {option.value[:100]} must exist on every host"
        notes.info("must_exist_on_host", option.line, message, "", f"args.{option.name}")


def _several_hosts(made: Carried, options: Mapping[str, Option], notes: Notes) -> None:
    found = [options[name] for name in _SEVERAL_HOSTS if name in options]
    nodes = options.get("nnodes")
    made.hosts = nodes.value if nodes and isinstance(nodes.value, int) else 1
    for option in found:
        message = f"{option.spelling} {option.value} is left out: the agents of a server over several hosts agree on it themselves"
        notes.info("dropped", option.line, message, "", option.name)
    if nodes and (made.hosts > 1 or not nodes.is_known):
        count = str(made.hosts) if nodes.is_known else "several"
        message = f"this is one server over {count} hosts ({nodes.spelling} {nodes.value}); the job that is made launches it on one"
        hint = "lower the parallel sizes to the GPUs of one host, or measure the running server as engine: {kind: external, url: …}"
        notes.error("not_supported", nodes.line, message, hint, "nnodes")


def _needs(made: Carried, launch: Launch, environment: Environment, notes: Notes) -> None:
    """Ask for every value that the file does not hold, in the order of the file."""
    for option in launch.options.values():
        if option.source is None or option.source.is_known or (option.spelling or option.name) in made.secret_names:
            continue
        made.needs.update(dict.fromkeys(option.source.unknown))
        key = "model.path" if option.name == "model_path" else f"args.{option.name}"
        if key in made.lines:
            _ask(made, key, option.source, option.spelling, notes)
    for word in launch.loose:
        made.needs.update(dict.fromkeys(word.unknown))
        made.unfilled[f"args.{_key_of(word)}"] = word.line
        message = f"`{word.text[:60]}` may hold more options, and the file does not say which"
        hint = "paste the line that sets it, or write its options into engine.args"
        notes.error("needs_value", word.line, message, hint, f"args.{_key_of(word)}")
        made.args[_key_of(word)] = _placeholder(word, _key_of(word))
        made.not_read.add(_key_of(word))
        made.lines[f"args.{_key_of(word)}"] = word.line
    for name, value in environment.kept.items():
        if not value.is_known:
            made.needs.update(dict.fromkeys(value.unknown))
            _ask(made, f"env.{name}", value, name, notes)
    for key, value in (("engine.python", made.python), ("engine.container.image", made.box.image if made.box else None)):
        if value is not None and not value.is_known:
            made.needs.update(dict.fromkeys(value.unknown))
            _ask(made, key, value, key, notes)


def _key_of(word: Argument) -> str:
    return (word.unknown[0] if word.unknown else "more_options").lower()


def _ask(made: Carried, key: str, value: Argument, spelling: str, notes: Notes) -> None:
    made.unfilled[key] = value.line
    if value.unevaluated:
        kind = value.unevaluated[0]
        wanted = "the number" if kind == _ARITHMETIC else "its value"
        message = f"{kind} in {spelling} is not worked out: `{value.text[:80]}`"
        notes.error("not_supported", value.line, message, f"write {wanted} instead", key)
    else:
        names = ", ".join(f"`${name}`" for name in value.unknown)
        hint = f"set {value.unknown[0]} in the file before the command, or fill it in in the job"
        notes.error("needs_value", value.line, f"{names} in {spelling} has no value in this file", hint, key)
    name = key.rpartition(".")[2]
    if key.startswith("args."):
        made.args[name] = _placeholder(value, name)
        made.not_read |= {name} if value.unevaluated else set()


def _placeholder(value: Argument, name: str) -> str:
    """What stands in the job until it is filled in: `$NAME` as written, or a name made of the option's."""
    return f"${{{name.upper()}}}" if value.unevaluated else value.text


def _ports(made: Carried, option: Option | None) -> None:
    port = _DEFAULT_PORT if option is None else option.value
    made.server_port = port if isinstance(port, int) and not isinstance(port, bool) else None
    mapped = made.box.ports.get(str(made.server_port), "") if made.box else ""
    made.probe_port = int(mapped) if mapped.isdecimal() else made.server_port


def _gpus(made: Carried, launch: Launch, environment: Environment, notes: Notes) -> None:
    made.gpu_ids = environment.gpu_ids
    box_ids = tuple(made.box.gpus.split(",")) if made.box and re.fullmatch(r"\d+(,\d+)+", made.box.gpus) else ()
    made.gpu_ids = made.gpu_ids or box_ids
    sizes = ("tp_size", "pp_size", "dp_size")
    asked = needed_gpus(made.args) // max(made.hosts, 1)
    given = len(made.gpu_ids) or (made.box.gpu_count if made.box else None)
    is_sure = all(f"args.{name}" not in made.unfilled for name in sizes)
    made.gpus = asked if is_sure else given
    if is_sure and given is not None and given < asked:
        line = environment.gpu_line or launch.start.line
        message = f"the launch has {given} GPUs, but its parallel sizes take {asked}"
        notes.warn("gpus_mismatch", line, message, "lower tp_size, or give it more GPUs", "engine.gpus")


def _model(made: Carried, launch: Launch, notes: Notes) -> None:
    path = made.model_path
    if path is None:
        message = "the command names no model: `--model-path` is missing"
        notes.error("needs_value", launch.entry.line, message, "add it, or fill in model.path in the job", "model.path")
        made.unfilled["model.path"] = launch.entry.line
        made.needs["MODEL"] = None
        return
    if not path.is_known:
        return
    if made.box is None and path.text.startswith(("/", "~/", "./")):
        notes.info("must_exist_on_host", path.line, f"the model `{path.text[:100]}` must exist on every host", "", "model.path")
    elif made.box is not None and path.text.startswith("/") and not _is_mounted(path.text, made.box.mounts):
        message = f"no mount brings the model `{path.text[:100]}` into the container"
        notes.warn("must_exist_on_host", path.line, message, "add the host's folder to engine.container.mounts, unless the image holds it", "model.path")


def _is_mounted(path: str, mounts: Iterable[str]) -> bool:
    return any(path == inside or path.startswith(f"{inside.rstrip('/')}/") for inside in mounts)
