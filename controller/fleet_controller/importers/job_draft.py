"""Owns what of one launch is carried into a job, and tells what is not: host, port, several hosts, secrets, unknown values."""

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
from fleet_controller.importers.server_environment import Environment
from fleet_controller.importers.server_options import NO_VALUE
from fleet_controller.importers.shell.expansion import Argument
from fleet_controller.importers.sources.docker_run import at_home
from fleet_controller.importers.sources.launch_values import Box, Launch, Option
from fleet_controller.yaml.finding_collector import Notes
from fleet_knowledge.sglang.parallelism import needed_gpus

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
    "help": "it prints the options and starts nothing",
    "numa_node": "the agent binds the server by the host's topology where engine.cpu_binding says so",
}
_ARITHMETIC = "shell arithmetic"


@dataclass(slots=True)
class Carried:
    """What the job is made of. `args` holds typed values by SGLang's names, unknown ones as the text with `$NAME` in it."""

    entry: str = ""
    entry_spelling: str = ""
    entry_line: int = 0
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
    made = Carried(launch.entry.kind, launch.entry.spelling, launch.entry.line, box=launch.start.box, python=launch.entry.python)
    if python is not None and (made.python is None or "/" not in made.python.text):
        made.python = python
    if made.python is not None:
        made.python = at_home(made.python)
    made.version = image_version(made.box.image.text) if made.box else ""
    for option in launch.options.values():
        _option(made, option, notes)
    _several_hosts(made, launch.options, notes)
    _needs(made, launch, environment, notes)
    take_environment(made, environment)
    _drop_key(made, launch)
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
        shown = "" if option.value is True else f" {str(option.value)[:60]}"
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
    message = f"{option.spelling} is a secret: it is left out of the job and written nowhere"
    notes.info("secret", option.line, message, hint, f"args.{option.name}")


def _drop_key(made: Carried, launch: Launch) -> None:
    """A variable that only holds the key of the API is of no use where the key is left out."""
    for option in launch.options.values():
        if not is_secret_option(option.name) or option.source is None:
            continue
        for name, value in launch.env.items():
            if is_secret_name(name) and (name in option.source.unknown or value.text == option.source.text):
                made.env.pop(name, None)
                made.lines.pop(f"env.{name}", None)


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
    nodes = options.get("nnodes")
    if nodes is not None:
        made.hosts = nodes.value if isinstance(nodes.value, int) and not isinstance(nodes.value, bool) else 1
        made.lines["engine.nodes"] = nodes.line
    if nodes is not None and not nodes.is_known and nodes.source is not None:
        _ask(made, "engine.nodes", nodes.source, nodes.spelling, notes)
    for name in _SEVERAL_HOSTS:
        option = options.get(name)
        if option is None or (name == "nnodes" and not option.is_known):
            continue
        counted = "engine.nodes says it" if made.hosts > 1 else "the server is on one host"
        why = counted if name == "nnodes" else "the agents of a server over several hosts agree on it themselves"
        notes.info("dropped", option.line, f"{option.spelling} {str(option.value)[:60]} is left out: {why}", "", name)


def _needs(made: Carried, launch: Launch, environment: Environment, notes: Notes) -> None:
    """Ask for every value that the file does not hold, in the order of the file."""
    for option in launch.options.values():
        if option.source is None or option.source.is_known or (option.spelling or option.name) in made.secret_names:
            continue
        key = "model.path" if option.name == "model_path" else f"args.{option.name}"
        if key in made.lines:
            _ask(made, key, option.source, option.spelling, notes)
        made.needs.update(dict.fromkeys(option.source.unknown))
    for word in launch.loose:
        _ask_for_options(made, word, notes)
    for name, value in environment.kept.items():
        _ask(made, f"env.{name}", value, name, notes)
    _ask_for_places(made, notes)


def _ask_for_places(made: Carried, notes: Notes) -> None:
    if made.python is not None:
        _ask(made, "engine.python", made.python, "the path of Python", notes)
    if made.box is not None:
        _ask(made, "engine.container.image", made.box.image, "the name of the image", notes)
        for inside, host in made.box.mounts.items():
            _ask(made, f"engine.container.mounts.{inside}", host, "the path of a mount", notes)


def _ask_for_options(made: Carried, word: Argument, notes: Notes) -> None:
    """A variable that may hold whole options gets a place in the job that cannot be overlooked."""
    name = word.unknown[0].lower() if word.unknown and word.unknown[0].isidentifier() else "more_options"
    made.needs.update(dict.fromkeys(word.unknown))
    made.unfilled[f"args.{name}"] = made.lines[f"args.{name}"] = word.line
    made.args[name] = _placeholder(word, name)
    made.not_read.add(name)
    message = f"`{word.text[:60]}` may hold more options, and the file does not say which"
    notes.error("needs_value", word.line, message, "paste the line that sets it, or write its options into engine.args", f"args.{name}")


def _ask(made: Carried, key: str, value: Argument, spelling: str, notes: Notes) -> None:
    if value.is_known:
        return
    made.needs.update(dict.fromkeys(value.unknown))
    made.unfilled[key] = value.line
    if value.unevaluated[:1] == (NO_VALUE,):
        notes.error("value_missing", value.line, f"{spelling} has no value", "give it one, or remove it", key)
    elif value.unevaluated:
        kind = value.unevaluated[0]
        wanted = "the number" if kind == _ARITHMETIC else "its value"
        message = f"{kind} in {spelling} is not worked out: `{value.text[:80]}`"
        notes.error("not_supported", value.line, message, f"write {wanted} instead", key)
    else:
        names = ", ".join(f"`${name}`" for name in value.unknown)
        settable = value.unknown[0].isidentifier()
        hint = f"set {value.unknown[0]} in the file before the command, or fill it in in the job" if settable else "write it into the job"
        notes.error("needs_value", value.line, f"{names} in {spelling} has no value in this file", hint, key)
    name = key.rpartition(".")[2]
    if key == "model.path" and not value.text:
        made.model_path = Argument("$MODEL", value.line, ("MODEL",))
    elif key.startswith("args."):
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
    made.gpu_ids = made.gpu_ids or (made.box.gpu_ids if made.box else ())
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
        hint = "the agent mounts the host's folder of that name; write the right one into engine.container.mounts if it lies elsewhere"
        notes.warn("must_exist_on_host", path.line, message, hint, "model.path")


def _is_mounted(path: str, mounts: Iterable[str]) -> bool:
    return any(path == inside or path.startswith(f"{inside.rstrip('/')}/") for inside in mounts)
