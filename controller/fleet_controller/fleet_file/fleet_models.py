"""Owns the shape of a fleet file as frozen pydantic models: types, bounds and descriptions of each
key; nothing that spans two keys.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from fleet_controller.yaml.fields import (
    Deadline,
    Gpus,
    JobName,
    Labels,
    Name,
    Section,
    Text,
    Variables,
    none_as_empty,
)
from fleet_controller.yaml.json_schema import json_schema_of

USER_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?$"
CURRENCY_PATTERN = r"^[A-Z]{3}$"
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")

Port = Annotated[int, Field(ge=1, le=65535)]
Cost = Annotated[float, Field(ge=0, le=1e6)]


def _many(written: object) -> object:
    return (written,) if isinstance(written, str) else written


def _refuse(code: str, problem: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{problem}", {"problem": problem, "hint": hint})


def _user(written: object) -> object:
    if isinstance(written, str) and not re.fullmatch(USER_PATTERN, written):
        raise _refuse(
            "bad_user",
            "cannot be the name of a user",
            "letters, digits, `-`, `_` and `.`, as in /etc/passwd",
        )
    return written


def _currency(written: object) -> object:
    if isinstance(written, str) and not re.fullmatch(CURRENCY_PATTERN, written):
        raise _refuse("bad_currency", "is no currency", "three capital letters, such as USD or EUR")
    return written


def _endpoint(written: object) -> object:
    match = _ENDPOINT.fullmatch(written) if isinstance(written, str) else None
    if not match or not 0 < int(match[2]) < 65536:
        hint = 'write it like "127.0.0.1:9400", or "0.0.0.0:9400" for all networks of the host'
        raise _refuse("bad_endpoint", "is no ADDRESS:PORT", hint)
    return written


def _remote_path(written: object) -> object:
    if (
        isinstance(written, str)
        and written
        and (
            not written.startswith(("/", "~/")) or re.search(r"[\x00-\x1f]|(^|/)\.\.(/|$)", written)
        )
    ):
        raise _refuse(
            "bad_path", "is no path of a host", "write it from `/` or `~/` on, without `..`"
        )
    return written


def _agent_python(written: object) -> object:
    return written if written in ("auto", "bundled") else _remote_path(written)


def _pattern(written: object) -> object:
    if isinstance(written, str) and not written.isprintable():
        raise _refuse(
            "bad_pattern", "holds what no pattern can", "write a name, or one with `*` and `?`"
        )
    return written


Texts = Annotated[
    tuple[Text, ...], BeforeValidator(_many, json_schema_input_type=str | tuple[str, ...])
]
User = Annotated[
    str, BeforeValidator(_user), WithJsonSchema({"type": "string", "pattern": USER_PATTERN})
]
Endpoint = Annotated[
    str,
    BeforeValidator(_endpoint),
    WithJsonSchema({"type": "string", "pattern": f"^{_ENDPOINT.pattern}$"}),
]
Currency = Annotated[
    str, BeforeValidator(_currency), WithJsonSchema({"type": "string", "pattern": CURRENCY_PATTERN})
]
RemotePath = Annotated[Text, BeforeValidator(_remote_path)]
AgentPython = Annotated[Text, BeforeValidator(_agent_python)]
_Pattern = Annotated[Text, BeforeValidator(_pattern)]
Patterns = Annotated[
    tuple[_Pattern, ...], BeforeValidator(_many, json_schema_input_type=str | tuple[str, ...])
]


class Allow(Section):
    """What jobs may ask of a host, beyond what its agent allows anyway; patterns with `*` and `?`."""

    python: Patterns = Field(
        default=(),
        description="Python interpreters that servers may be started with, as paths on the host.",
    )
    images: Patterns = Field(default=(), description="Container images.")
    models: Patterns = Field(default=(), description="Folders and names of models.")
    mounts: Patterns = Field(
        default=(), description="Folders of the host that a container may mount."
    )
    env: Patterns = Field(
        default=(),
        description="Variables of servers, beside the built-in list (NCCL_*, SGLANG_*, CUDA_*, …).",
    )
    args: Patterns = Field(
        default=(),
        description="Arguments of servers that are refused otherwise, as they load code, write or listen.",
    )


class Install(Section):
    """Where and how `fleetctl deploy` puts the agent."""

    mode: Literal["auto", "system", "user", "daemon"] | None = Field(
        default=None,
        description="system or user: a systemd unit; daemon: without systemd; auto (default): the first of them that goes.",
    )
    path: RemotePath | None = Field(
        default=None, description="Folder of the program; default: that of the mode."
    )
    state: RemotePath | None = Field(
        default=None, description="Folder of journal and artifacts; default: that of the mode."
    )
    run_as: User | None = Field(
        default=None,
        description="User that the agent and its servers run as; default: who logs in.",
    )
    python: AgentPython | None = Field(
        default=None,
        description="Interpreter of the agent: auto (default), bundled, or a path there.",
    )


class HostKeys(Section):
    """What may be said of one host, a group, or all hosts (`defaults`); the nearest wins, labels
    and env are laid over each other.
    """

    address: Text | None = Field(
        default=None,
        description="What ssh and the controller connect to; default: the name. May hold `{name}`.",
    )
    user: User | None = Field(default=None, description="Who logs in by ssh.")
    port: Port | None = Field(default=None, description="Port of ssh.")
    identity: Texts | None = Field(
        default=None, description="Private key of ssh, or a list of them."
    )
    proxy_jump: Text | None = Field(
        default=None,
        description="Hosts to go through, `user@host:port,second`; none: reach it directly.",
    )
    known_hosts: Texts | None = Field(
        default=None, description="File of known host keys, or a list of them."
    )
    reach: Literal["direct", "ssh"] | None = Field(
        default=None,
        description="How the controller reaches the agent: direct, or ssh (a tunnel; default behind proxy_jump).",
    )
    agent_port: Port | None = Field(default=None, description="Port of the agent; default 7433.")
    labels: Labels = Field(default={}, description="What the `hosts.labels` of a job match.")
    gpus: Gpus | None = Field(
        default=None, description="GPUs that jobs may use; default: all that are there."
    )
    simulated_gpus: Gpus | None = Field(
        default=None, description="GPUs that the simulated engine may pretend to use."
    )
    python: RemotePath | None = Field(
        default=None, description="Python with SGLang, for jobs that name neither Python nor image."
    )
    image: Text | None = Field(
        default=None,
        description="Container image with SGLang, for jobs that name neither Python nor image.",
    )
    env: Variables = Field(
        default={},
        description="Variables of every server there; a job's own win, null takes one away.",
    )
    cost_per_hour: Cost | None = Field(
        default=None, description="What the whole host costs in an hour, in the fleet's currency."
    )
    load_only: bool | None = Field(
        default=None, description="It drives load for other hosts and gets no trials."
    )
    metrics: Endpoint | None = Field(
        default=None,
        description="ADDRESS:PORT on the host for its Prometheus endpoint; default: none.",
    )
    allow: Annotated[Allow, none_as_empty(Allow)] = Field(
        default=Allow(), description="What jobs may ask of it."
    )
    install: Annotated[Install, none_as_empty(Install)] = Field(
        default=Install(), description="Where and how the agent is installed."
    )


HostName = Annotated[
    Text, WithJsonSchema({"type": ["string", "integer"], "minLength": 1})
]  # `name: 12` is read as text


class Host(HostKeys):
    """One host, or as many as its name is a range of."""

    name: HostName = Field(
        description="How findings, results and metrics call it; a range, gpu[01-16], stands for many."
    )


def _none(written: object) -> object:
    return () if written is None else written


def _named(written: object) -> object:
    return {"name": written} if isinstance(written, str) else written


HostEntry = Annotated[Host, BeforeValidator(_named, json_schema_input_type=Host | str | int)]


Hosts = Annotated[
    tuple[HostEntry, ...],
    BeforeValidator(_none, json_schema_input_type=tuple[Host | str | int, ...] | None),
]


class Group(HostKeys):
    """Hosts that share what the group says."""

    hosts: Annotated[tuple[HostEntry, ...], Field(min_length=1)] = Field(
        description="Names, ranges, or mappings with `name` and more."
    )


class FleetFile(Section):
    """A fleet of benchfleet."""

    model_config = ConfigDict(
        title="benchfleet fleet", json_schema_extra={"patternProperties": {"^x-": {}}}
    )

    apiVersion: Literal["benchfleet/v1"] = Field(description="Version of this format.")
    kind: Literal["Fleet"] = Field(description="Fleet.")
    name: JobName | None = Field(default=None, description="What the fleet is called.")
    currency: Currency = Field(default="USD", description="Of cost_per_hour, as USD or EUR.")
    deploys_at_once: Annotated[int, Field(ge=1, le=256)] = Field(
        default=16, description="Hosts that deploy works on at once."
    )
    give_up_after: Deadline = Field(
        default=3600.0, description="How long a host may be away before its trials are given up."
    )
    defaults: Annotated[HostKeys, none_as_empty(HostKeys)] = Field(
        default=HostKeys(), description="What holds where nothing else is said."
    )
    groups: Annotated[dict[Name, Group], none_as_empty(dict[str, Group])] = Field(
        default={}, description="group: {hosts: […], and any key of a host}."
    )
    hosts: Hosts = Field(default=(), description="Hosts of no group.")


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file. It accepts all that the loader accepts; rules that span
    keys belong to `lint`.
    """
    return json_schema_of(FleetFile, "benchfleet fleet")
