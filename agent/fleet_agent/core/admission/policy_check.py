"""Checks a trial against the host's policy. A refusal names the policy entry that would permit it.

What the check must know about the host's disk comes from a `PathLookup`.
"""

from __future__ import annotations

import ipaddress
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from fleet_agent.core.admission.host_policy import Policy
from fleet_knowledge.security import path_patterns, risky_arguments, risky_variables
from fleet_knowledge.sglang.server_arguments import known_arguments as known_arguments
from fleet_knowledge.sglang.server_arguments import resolve_name
from fleet_protos.trial_types import EngineKind, EngineSpec

_ALWAYS = ("/dev/null", "/dev/stdout", "/dev/stderr")
# Never allowed, since these folders control the whole host
_NEVER = (
    *(
        "/etc",
        "/proc",
        "/sys",
        "/dev",
        "/boot",
        "/run",
        "/var/run",
        "/var/lib/docker",
        "/var/lib/containers",
    ),
    *("/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib"),
)
_NEVER_AT_HOME = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/benchfleet",
    ".config/gcloud",
    ".netrc",
)
_SHARED_MEMORY = "/dev/shm"
_METADATA_6 = ipaddress.ip_address("fd00:ec2::254")
_METADATA = ("metadata.google.internal", "metadata", "instance-data")


@dataclass(frozen=True, slots=True)
class PathLookup:
    """Answers what the policy check must know about the host's disk.

    `home` is the home folder of the agent's user. `real` resolves symbolic links. `which` finds a
    program on PATH. `private` lists the agent's own folders.
    """

    home: str
    real: Callable[[str], str]
    which: Callable[[str], str]
    private: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyViolation:
    """Describes one setting of a trial that the host refuses.

    An `entry` in the list `allow` of the host's policy would permit the setting. `allow` is empty
    if no entry can permit it.
    """

    key: str
    message: str
    allow: str = ""
    entry: str = ""

    def __str__(self) -> str:
        return f"{self.key} {self.message}"


def policy_violations(
    engine: EngineSpec, host_variables: tuple[str, ...], policy: Policy, lookup: PathLookup
) -> tuple[PolicyViolation, ...]:
    """Return everything that the host refuses in a trial. An open policy refuses nothing.

    `host_variables` names the variables that come from the host's own defaults.
    """
    if policy.is_open:
        return ()
    if engine.kind is EngineKind.EXTERNAL:
        return tuple(_check_url(engine.url))
    if policy.load_only:
        return (
            PolicyViolation(
                "engine", "needs a server, but this host only sends load for other hosts"
            ),
        )
    found = [*_check_variables(engine, host_variables, policy, lookup)]
    if engine.kind is EngineKind.SGLANG:
        found += [*_check_program(engine, policy, lookup), *_check_mounts(engine, policy, lookup)]
        found += [*_check_arguments(engine, policy, lookup), *_check_models(engine, policy, lookup)]
    return tuple(found)


# Programs


def _check_program(
    engine: EngineSpec, policy: Policy, lookup: PathLookup
) -> Iterator[PolicyViolation]:
    if image := engine.container.image:
        spelled = (
            image,
            image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest",
        )
        if not any(
            path_patterns.matches_pattern(text, pattern)
            for text in spelled
            for pattern in policy.images
        ):
            yield PolicyViolation(
                "engine.container.image",
                f"{image} is not allowed ({_list_patterns(policy.images)})",
                "images",
                image,
            )
        return
    written = _expand_home(engine.python, lookup)
    found = lookup.which(written) or written
    # the program's own link is not followed: it says which virtual environment the program is in
    real = posixpath.join(lookup.real(posixpath.dirname(found)), posixpath.basename(found))
    if path_patterns.has_parent_reference(written) or not (
        _is_allowed(found, policy.python, lookup)
        and _is_allowed(real, policy.python, lookup, links=True)
    ):
        shown = engine.python if real == found else f"{engine.python} (resolves to {real})"
        yield PolicyViolation(
            "engine.python",
            f"{shown} is not allowed ({_list_patterns(policy.python)})",
            "python",
            engine.python,
        )


def _is_allowed(
    path: str, patterns: tuple[str, ...], lookup: PathLookup, *, links: bool = False
) -> bool:
    return any(
        path_patterns.matches_pattern(path, pattern)
        for pattern in _expand_patterns(patterns, lookup, links)
    )


def _expand_patterns(patterns: tuple[str, ...], lookup: PathLookup, links: bool) -> Iterator[str]:
    """Yield each pattern with `~` replaced by the home folder. If `links` is set, also yield it
    with its symbolic links resolved.
    """
    for pattern in patterns:
        at_home = _expand_home(pattern, lookup)
        yield at_home
        plain = posixpath.dirname(at_home.partition("*")[0].partition("?")[0])
        if links and plain.startswith("/"):
            yield lookup.real(plain).rstrip("/") + at_home[len(plain.rstrip("/")) :]


def _expand_home(path: str, lookup: PathLookup) -> str:
    """Replace a leading `~` by the home folder. Replace several leading slashes by one."""
    path = lookup.home.rstrip("/") + path[1:] if path == "~" or path.startswith("~/") else path
    return f"/{path.lstrip('/')}" if path.startswith("//") else path


# Variables and arguments


def _check_variables(
    engine: EngineSpec, host_variables: tuple[str, ...], policy: Policy, lookup: PathLookup
) -> Iterator[PolicyViolation]:
    patterns = tuple(pattern for pattern in policy.env if "*" in pattern or "?" in pattern)
    for name, value in engine.env.items():
        key = f"engine.env.{name}"
        if name in host_variables or name in policy.env:  # allowed by name, so deliberately
            continue
        if risk := risky_variables.variable_risk(name, value):
            yield PolicyViolation(key, risk, "env", name)
        elif not risky_variables.is_tuning_variable(name) and not any(
            fnmatchcase(name, pattern) for pattern in patterns
        ):
            yield PolicyViolation(
                key, "is not a variable that is known to tune a server", "env", name
            )
        elif not value.startswith("secret://"):
            yield from _check_paths(key, value, engine, policy, lookup)


def _check_arguments(
    engine: EngineSpec, policy: Policy, lookup: PathLookup
) -> Iterator[PolicyViolation]:
    for written, value in engine.args.items():
        name, key = resolve_name(written).name, f"engine.args.{written}"
        if name in policy.args:
            continue
        if name != written:
            yield PolicyViolation(key, f"is an alias of {name}: write {name} instead")
            continue
        if risk := risky_arguments.argument_risk(name, value):
            yield PolicyViolation(key, risk, "args", name)
        elif name not in known_arguments():
            yield PolicyViolation(
                key, "is not a known argument of SGLang, so its effect is unknown", "args", name
            )
        elif name not in (*risky_arguments.MODEL_ARGUMENTS, *risky_arguments.NOT_PATHS):
            yield from _check_paths(key, value, engine, policy, lookup)


def _check_paths(
    key: str, value: object, engine: EngineSpec, policy: Policy, lookup: PathLookup
) -> Iterator[PolicyViolation]:
    if path_patterns.has_parent_reference(value):
        yield PolicyViolation(key, "contains `..`, which may lead out of an allowed folder")
    for path in path_patterns.paths_in(value):
        if (
            path not in _ALWAYS
            and not _is_mounted(path, engine)
            and not _is_confined(path, (*policy.mounts, *policy.models), lookup)
        ):
            allowed = _list_patterns((*policy.mounts, *policy.models))
            message = f"names {path}, which jobs may not use ({allowed})"
            yield PolicyViolation(key, message, "mounts", posixpath.dirname(path) or path)


def _is_mounted(path: str, engine: EngineSpec) -> bool:
    """Return whether the path is inside a mount of the job's container. Mounts are checked
    separately.
    """
    return bool(engine.container.image) and any(
        path_patterns.is_inside_pattern(path, target)
        for target in engine.container.mounts
        if target != "/"
    )


def _is_confined(path: str, patterns: tuple[str, ...], lookup: PathLookup) -> bool:
    """Return whether a path is in an allowed folder and not private. This must hold for the path as
    written and for the path with its symbolic links resolved.
    """
    written = _expand_home(path, lookup)
    real = lookup.real(written)
    if (
        not written.startswith("/")
        or path_patterns.has_parent_reference(written)
        or _is_private(written, lookup)
        or _is_private(real, lookup)
    ):
        return False
    return _is_below(written, patterns, lookup, links=False) and _is_below(
        real, patterns, lookup, links=True
    )


def _is_below(path: str, patterns: tuple[str, ...], lookup: PathLookup, *, links: bool) -> bool:
    return any(
        path_patterns.is_inside_pattern(path, pattern)
        for pattern in _expand_patterns(patterns, lookup, links)
    )


def _is_private(path: str, lookup: PathLookup) -> bool:
    """Return whether a path is inside a private folder or contains one. Private are the folders
    that control the host and the agent's own folders.
    """
    path = posixpath.normpath(path)
    if path_patterns.is_inside_pattern(path, _SHARED_MEMORY):
        return False
    at_home = tuple(posixpath.join(lookup.home, name) for name in _NEVER_AT_HOME)
    return any(
        path_patterns.is_inside_pattern(path, folder)
        or path_patterns.is_inside_pattern(folder, path)
        for folder in (*_NEVER, *at_home, *lookup.private)
    )


# Models, mounts, addresses


def _check_models(
    engine: EngineSpec, policy: Policy, lookup: PathLookup
) -> Iterator[PolicyViolation]:
    found = risky_arguments.models_in(engine.args)
    for key, name in (
        ("model.path", engine.model_path),
        *((f"engine.args.{model.argument}", model.name) for model in found),
    ):
        place = _path_on_host(name, engine)
        if policy.models and not _is_allowed_model(place, policy, lookup):
            yield PolicyViolation(
                key, f"{name} is not allowed ({_list_patterns(policy.models)})", "models", name
            )
        elif not policy.models and (
            path_patterns.has_parent_reference(name) or path_patterns.addresses_in(name)
        ):
            yield PolicyViolation(
                key, f"{name} is neither a plain path nor a model name of the hub", "models", name
            )
        elif place.startswith(("/", "~")) and _is_private(
            lookup.real(_expand_home(place, lookup)), lookup
        ):
            yield PolicyViolation(key, f"{name} is in a folder of the system or of the agent")
    is_on = engine.args.get("trust_remote_code") not in (None, False)
    if is_on and not policy.models and "trust_remote_code" not in policy.args:
        message = (
            f"runs code that the model {engine.model_path} brings, but this host allows no model "
            "to run its own code"
        )
        yield PolicyViolation("engine.args.trust_remote_code", message, "models", engine.model_path)


def _path_on_host(name: str, engine: EngineSpec) -> str:
    """Return the path on the host for a path inside the container."""
    for inside, outside in sorted(
        engine.container.mounts.items(), key=lambda mount: -len(mount[0])
    ):
        if (
            engine.container.image
            and name.startswith("/")
            and path_patterns.is_inside_pattern(name, inside)
        ):
            return (
                outside.removesuffix(":ro").removesuffix(":rw").rstrip("/")
                + name[len(inside.rstrip("/")) :]
            )
    return name


def _is_allowed_model(name: str, policy: Policy, lookup: PathLookup) -> bool:
    if path_patterns.has_parent_reference(name):
        return False
    if not name.startswith(("/", "~/")):
        return any(path_patterns.matches_pattern(name, pattern) for pattern in policy.models)
    written = _expand_home(name, lookup)
    return _is_below(written, policy.models, lookup, links=False) and _is_below(
        lookup.real(written), policy.models, lookup, links=True
    )


def _check_mounts(
    engine: EngineSpec, policy: Policy, lookup: PathLookup
) -> Iterator[PolicyViolation]:
    for inside, outside in engine.container.mounts.items():
        source = outside.removesuffix(":ro").removesuffix(":rw")
        allowed = (*policy.mounts, *policy.models) if outside.endswith(":ro") else policy.mounts
        if not _is_confined(source, allowed, lookup):
            entry = "" if _is_private(_expand_home(source, lookup), lookup) else source
            message = (
                f"{source} may not be mounted ({_list_patterns(allowed)})"
                if entry
                else f"{source} is a folder of the system or of the agent"
            )
            yield PolicyViolation(
                f"engine.container.mounts.{inside}", message, "mounts" if entry else "", entry
            )


def _check_url(url: str) -> Iterator[PolicyViolation]:
    """Refuse addresses that cannot be a server to measure but give access to the host, such as a
    cloud's metadata service.
    """
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        is_odd = host.rstrip(".").lower() in _METADATA
    else:
        address = getattr(address, "ipv4_mapped", None) or address
        is_odd = (
            address.is_link_local
            or address.is_multicast
            or address.is_unspecified
            or address == _METADATA_6
        )
    if is_odd:
        yield PolicyViolation("engine.url", f"{url} is not the address of a server to measure")


def _list_patterns(patterns: tuple[str, ...]) -> str:
    return f"allowed: {', '.join(patterns)}" if patterns else "none is allowed"
