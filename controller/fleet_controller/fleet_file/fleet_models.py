"""The fleet file as frozen pydantic models: types, bounds and descriptions of each key."""

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


def _as_tuple(written: object) -> object:
    return (written,) if isinstance(written, str) else written


def _refuse(code: str, problem: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{problem}", {"problem": problem, "hint": hint})


def _check_user(written: object) -> object:
    if isinstance(written, str) and not re.fullmatch(USER_PATTERN, written):
        raise _refuse(
            "bad_user",
            "is not a valid user name",
            "use letters, digits, `-`, `_` and `.`, as in /etc/passwd",
        )
    return written


def _check_currency(written: object) -> object:
    if isinstance(written, str) and not re.fullmatch(CURRENCY_PATTERN, written):
        raise _refuse(
            "bad_currency", "is not a currency", "write three capital letters, such as USD or EUR"
        )
    return written


def _check_endpoint(written: object) -> object:
    match = _ENDPOINT.fullmatch(written) if isinstance(written, str) else None
    if not match or not 0 < int(match[2]) < 65536:
        hint = 'write it like "127.0.0.1:9400", or "0.0.0.0:9400" for all networks of the host'
        raise _refuse("bad_endpoint", "is not ADDRESS:PORT", hint)
    return written


def _check_remote_path(written: object) -> object:
    if (
        isinstance(written, str)
        and written
        and (
            not written.startswith(("/", "~/")) or re.search(r"[\x00-\x1f]|(^|/)\.\.(/|$)", written)
        )
    ):
        raise _refuse(
            "bad_path", "is not a path on a host", "start it with `/` or `~/`, and do not use `..`"
        )
    return written


def _check_agent_python(written: object) -> object:
    return written if written in ("auto", "bundled") else _check_remote_path(written)


def _check_pattern(written: object) -> object:
    if isinstance(written, str) and not written.isprintable():
        raise _refuse(
            "bad_pattern",
            "contains characters that are not printable",
            "write a name, or a pattern with `*` and `?`",
        )
    return written


Texts = Annotated[
    tuple[Text, ...], BeforeValidator(_as_tuple, json_schema_input_type=str | tuple[str, ...])
]
User = Annotated[
    str, BeforeValidator(_check_user), WithJsonSchema({"type": "string", "pattern": USER_PATTERN})
]
Endpoint = Annotated[
    str,
    BeforeValidator(_check_endpoint),
    WithJsonSchema({"type": "string", "pattern": f"^{_ENDPOINT.pattern}$"}),
]
Currency = Annotated[
    str,
    BeforeValidator(_check_currency),
    WithJsonSchema({"type": "string", "pattern": CURRENCY_PATTERN}),
]
RemotePath = Annotated[Text, BeforeValidator(_check_remote_path)]
AgentPython = Annotated[Text, BeforeValidator(_check_agent_python)]
_Pattern = Annotated[Text, BeforeValidator(_check_pattern)]
Patterns = Annotated[
    tuple[_Pattern, ...], BeforeValidator(_as_tuple, json_schema_input_type=str | tuple[str, ...])
]


class Allow(Section):
    """What jobs may use on a host in addition to what every agent allows. The values are patterns
    with `*` and `?`.
    """

    python: Patterns = Field(
        default=(),
        description="Python interpreters that servers may run with, as paths on the host.",
    )
    images: Patterns = Field(default=(), description="Container images.")
    models: Patterns = Field(default=(), description="Model folders and names.")
    mounts: Patterns = Field(
        default=(), description="Folders on the host that a container may mount."
    )
    env: Patterns = Field(
        default=(),
        description=(
            "Environment variables of servers, in addition to the built-in list (NCCL_*, SGLANG_*, "
            "CUDA_*, …)."
        ),
    )
    args: Patterns = Field(
        default=(),
        description=(
            "Server arguments that are otherwise refused because they load code, write files or "
            "open ports."
        ),
    )


class Install(Section):
    """Where and how `fleetctl deploy` installs the agent."""

    mode: Literal["auto", "system", "user", "daemon"] | None = Field(
        default=None,
        description=(
            "system and user install a systemd unit, daemon works without systemd. auto (default) "
            "takes the first of these that works."
        ),
    )
    path: RemotePath | None = Field(
        default=None, description="Folder of the program; default: depends on the mode."
    )
    state: RemotePath | None = Field(
        default=None,
        description="Folder of the journal and the artifacts; default: depends on the mode.",
    )
    run_as: User | None = Field(
        default=None,
        description="User that the agent and its servers run as; default: the ssh user.",
    )
    python: AgentPython | None = Field(
        default=None,
        description="Python of the agent: auto (default), bundled, or a path on the host.",
    )


class HostKeys(Section):
    """Settings of one host, of a group, or of all hosts (`defaults`). The setting nearest to the
    host wins. Labels and variables of all three are merged.
    """

    address: Text | None = Field(
        default=None,
        description=(
            "Address that ssh and the controller connect to; default: the name. May contain "
            "`{name}`."
        ),
    )
    user: User | None = Field(default=None, description="User for ssh.")
    port: Port | None = Field(default=None, description="Port of ssh.")
    identity: Texts | None = Field(
        default=None, description="Private key of ssh, or a list of keys."
    )
    proxy_jump: Text | None = Field(
        default=None,
        description="Jump hosts, such as `user@host:port,second`. none connects directly.",
    )
    known_hosts: Texts | None = Field(
        default=None, description="File of known host keys, or a list of such files."
    )
    reach: Literal["direct", "ssh"] | None = Field(
        default=None,
        description=(
            "How the controller reaches the agent: direct, or ssh (a tunnel; the default with "
            "proxy_jump)."
        ),
    )
    agent_port: Port | None = Field(default=None, description="Port of the agent; default 7433.")
    labels: Labels = Field(default={}, description="Labels that a job's `hosts.labels` can match.")
    gpus: Gpus | None = Field(
        default=None, description="Number of GPUs that jobs may use; default: all."
    )
    simulated_gpus: Gpus | None = Field(
        default=None, description="Number of GPUs that the simulated engine may pretend to use."
    )
    python: RemotePath | None = Field(
        default=None,
        description="Python with SGLang, for jobs that name neither a Python nor an image.",
    )
    image: Text | None = Field(
        default=None,
        description=(
            "Container image with SGLang, for jobs that name neither a Python nor an image."
        ),
    )
    env: Variables = Field(
        default={},
        description=(
            "Environment variables of every server on the host. A job's own variables win. null "
            "removes a variable."
        ),
    )
    cost_per_hour: Cost | None = Field(
        default=None, description="Cost of the whole host per hour, in the fleet's currency."
    )
    load_only: bool | None = Field(
        default=None, description="The host sends load to other hosts and gets no trials."
    )
    metrics: Endpoint | None = Field(
        default=None,
        description="ADDRESS:PORT on the host for its Prometheus endpoint; default: none.",
    )
    allow: Annotated[Allow, none_as_empty(Allow)] = Field(
        default=Allow(), description="What jobs may use on the host."
    )
    install: Annotated[Install, none_as_empty(Install)] = Field(
        default=Install(), description="Where and how the agent is installed."
    )


HostName = Annotated[
    Text, WithJsonSchema({"type": ["string", "integer"], "minLength": 1})
]  # `name: 12` is read as text


class Host(HostKeys):
    """One host, or several if its name is a range."""

    name: HostName = Field(
        description=(
            "Name in findings, results and metrics; a range such as gpu[01-16] stands for several "
            "hosts."
        )
    )


def _none_as_empty_tuple(written: object) -> object:
    return () if written is None else written


def _name_as_host(written: object) -> object:
    return {"name": written} if isinstance(written, str) else written


HostEntry = Annotated[Host, BeforeValidator(_name_as_host, json_schema_input_type=Host | str | int)]


Hosts = Annotated[
    tuple[HostEntry, ...],
    BeforeValidator(
        _none_as_empty_tuple, json_schema_input_type=tuple[Host | str | int, ...] | None
    ),
]


class Group(HostKeys):
    """Hosts that share the settings of the group."""

    hosts: Annotated[tuple[HostEntry, ...], Field(min_length=1)] = Field(
        description="Host names, ranges of names, or mappings with `name` and other keys of a host."
    )


class FleetFile(Section):
    """The content of a fleet file: the hosts of a fleet and their settings."""

    model_config = ConfigDict(
        title="benchfleet fleet", json_schema_extra={"patternProperties": {"^x-": {}}}
    )

    apiVersion: Literal["benchfleet/v1"] = Field(description="Version of this format.")
    kind: Literal["Fleet"] = Field(description="Fleet.")
    name: JobName | None = Field(default=None, description="Name of the fleet.")
    currency: Currency = Field(
        default="USD", description="Currency of cost_per_hour, such as USD or EUR."
    )
    deploys_at_once: Annotated[int, Field(ge=1, le=256)] = Field(
        default=16, description="Number of hosts that deploy works on at once."
    )
    give_up_after: Deadline = Field(
        default=3600.0, description="How long a host may be away before its trials are given up."
    )
    defaults: Annotated[HostKeys, none_as_empty(HostKeys)] = Field(
        default=HostKeys(),
        description="Settings of all hosts. A group or a host may set another value.",
    )
    groups: Annotated[dict[Name, Group], none_as_empty(dict[str, Group])] = Field(
        default={}, description="Groups by name. A group has `hosts` and any key of a host."
    )
    hosts: Hosts = Field(default=(), description="Hosts without a group.")


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema of a fleet file. It accepts every file that the loader accepts. Rules
    about several keys are checked only by `lint`.
    """
    return json_schema_of(FleetFile, "benchfleet fleet")
