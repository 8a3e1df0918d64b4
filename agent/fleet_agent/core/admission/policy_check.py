"""Owns what of a trial a strict host refuses, and how its owner would allow it. Pure: how paths lie on the disk is asked of a `Look`."""

from __future__ import annotations

import ipaddress
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from fleet_agent.core.admission.host_policy import Policy
from fleet_knowledge.security import path_patterns, risky_arguments, risky_variables
from fleet_knowledge.sglang.server_arguments import arguments as known_arguments
from fleet_knowledge.sglang.server_arguments import spell
from fleet_protos.trial_types import EngineKind, EngineSpec

_ALWAYS = ("/dev/null", "/dev/stdout", "/dev/stderr")
# Nobody's to give away: what the whole host is ruled by
_NEVER = (
    *("/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/var/run", "/var/lib/docker", "/var/lib/containers"),
    *("/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib"),
)
_NEVER_AT_HOME = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/benchfleet", ".config/gcloud", ".netrc")
_SHARED_MEMORY = "/dev/shm"
_METADATA_6 = ipaddress.ip_address("fd00:ec2::254")
_METADATA = ("metadata.google.internal", "metadata", "instance-data")


@dataclass(frozen=True, slots=True)
class Look:
    """What the decision asks of the host: `real` follows links, `which` finds a program; `private`: folders of the agent itself."""

    home: str
    real: Callable[[str], str]
    which: Callable[[str], str]
    private: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that is not allowed here. `allow`: the list that would have to name it, empty when none can; `entry`: as what."""

    key: str
    told: str
    allow: str = ""
    entry: str = ""

    def __str__(self) -> str:
        return f"{self.key} {self.told}"


def refusals(engine: EngineSpec, given: tuple[str, ...], policy: Policy, look: Look) -> tuple[Refusal, ...]:
    """All that this host refuses of a trial; nothing under an open policy. `given`: variables that are the host's own defaults."""
    if policy.is_open:
        return ()
    if engine.kind is EngineKind.EXTERNAL:
        return tuple(_of_url(engine.url))
    if policy.load_only:
        return (Refusal("engine", "asks for a server, and this host only drives load for others"),)
    found = [*_of_variables(engine, given, policy, look)]
    if engine.kind is EngineKind.SGLANG:
        found += [*_of_program(engine, policy, look), *_of_mounts(engine, policy, look)]
        found += [*_of_arguments(engine, policy, look), *_of_models(engine, policy, look)]
    return tuple(found)


# Programs


def _of_program(engine: EngineSpec, policy: Policy, look: Look) -> Iterator[Refusal]:
    if image := engine.container.image:
        spelled = (image, image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest")
        if not any(path_patterns.matches(text, pattern) for text in spelled for pattern in policy.images):
            yield Refusal("engine.container.image", f"{image} is not allowed ({_listed(policy.images)})", "images", image)
        return
    written = _at_home(engine.python, look)
    found = look.which(written) or written
    real = posixpath.join(look.real(posixpath.dirname(found)), posixpath.basename(found))  # its link says which environment it is of
    if path_patterns.climbs(written) or not (_allowed(found, policy.python, look) and _allowed(real, policy.python, look, links=True)):
        shown = engine.python if real == found else f"{engine.python} (which is {real})"
        yield Refusal("engine.python", f"{shown} is not allowed ({_listed(policy.python)})", "python", engine.python)


def _allowed(path: str, patterns: tuple[str, ...], look: Look, *, links: bool = False) -> bool:
    return any(path_patterns.matches(path, pattern) for pattern in _spelled(patterns, look, links))


def _spelled(patterns: tuple[str, ...], look: Look, links: bool) -> Iterator[str]:
    """The patterns under the home folder, and, with `links`, as they read once the links of their own folders are followed."""
    for pattern in patterns:
        at_home = _at_home(pattern, look)
        yield at_home
        plain = posixpath.dirname(at_home.partition("*")[0].partition("?")[0])
        if links and plain.startswith("/"):
            yield look.real(plain).rstrip("/") + at_home[len(plain.rstrip("/")) :]


def _at_home(path: str, look: Look) -> str:
    """With its `~` replaced, and one slash where it begins with several, which are another way to write one."""
    path = look.home.rstrip("/") + path[1:] if path == "~" or path.startswith("~/") else path
    return f"/{path.lstrip('/')}" if path.startswith("//") else path


# Variables and arguments


def _of_variables(engine: EngineSpec, given: tuple[str, ...], policy: Policy, look: Look) -> Iterator[Refusal]:
    patterns = tuple(pattern for pattern in policy.env if "*" in pattern or "?" in pattern)
    for name, value in engine.env.items():
        key = f"engine.env.{name}"
        if name in given or name in policy.env:  # by name: whoever wrote it there knows what it does
            continue
        if what := risky_variables.danger(name, value):
            yield Refusal(key, what, "env", name)
        elif not risky_variables.tunes(name) and not any(fnmatchcase(name, pattern) for pattern in patterns):
            yield Refusal(key, "is no variable that tunes a server", "env", name)
        elif not value.startswith("secret://"):
            yield from _of_paths(key, value, engine, policy, look)


def _of_arguments(engine: EngineSpec, policy: Policy, look: Look) -> Iterator[Refusal]:
    for written, value in engine.args.items():
        name, key = spell(written).name, f"engine.args.{written}"
        if name in policy.args:
            continue
        if name != written:
            yield Refusal(key, f"is another spelling of {name}: write that")
            continue
        if what := risky_arguments.danger(name, value):
            yield Refusal(key, what, "args", name)
        elif name not in known_arguments():
            yield Refusal(key, "is no argument of SGLang that is known here, so nobody can say what it does", "args", name)
        elif name not in (*risky_arguments.MODELS, *risky_arguments.PLAIN):
            yield from _of_paths(key, value, engine, policy, look)


def _of_paths(key: str, value: object, engine: EngineSpec, policy: Policy, look: Look) -> Iterator[Refusal]:
    if path_patterns.climbs(value):
        yield Refusal(key, "climbs out of its folder by `..`")
    for path in path_patterns.paths_in(value):
        if path not in _ALWAYS and not _is_mounted(path, engine) and not _confined(path, (*policy.mounts, *policy.models), look):
            where = f"names {path}, outside of what jobs may use ({_listed((*policy.mounts, *policy.models))})"
            yield Refusal(key, where, "mounts", posixpath.dirname(path) or path)


def _is_mounted(path: str, engine: EngineSpec) -> bool:
    """It means a place inside the container that the job has mounted: the mount itself is judged."""
    return bool(engine.container.image) and any(path_patterns.inside(path, target) for target in engine.container.mounts if target != "/")


def _confined(path: str, patterns: tuple[str, ...], look: Look) -> bool:
    """Below an allowed folder, as it is written and where its links lead, and none of what is never given away."""
    written = _at_home(path, look)
    real = look.real(written)
    if not written.startswith("/") or path_patterns.climbs(written) or _is_private(written, look) or _is_private(real, look):
        return False
    return _is_below(written, patterns, look, links=False) and _is_below(real, patterns, look, links=True)


def _is_below(path: str, patterns: tuple[str, ...], look: Look, *, links: bool) -> bool:
    return any(path_patterns.inside(path, pattern) for pattern in _spelled(patterns, look, links))


def _is_private(path: str, look: Look) -> bool:
    """It rules the host or the agent, lies in such a folder, or holds one."""
    path = posixpath.normpath(path)
    if path_patterns.inside(path, _SHARED_MEMORY):
        return False
    at_home = tuple(posixpath.join(look.home, name) for name in _NEVER_AT_HOME)
    return any(path_patterns.inside(path, folder) or path_patterns.inside(folder, path) for folder in (*_NEVER, *at_home, *look.private))


# Models, mounts, addresses


def _of_models(engine: EngineSpec, policy: Policy, look: Look) -> Iterator[Refusal]:
    found = risky_arguments.models_in(engine.args)
    for key, name in (("model.path", engine.model_path), *((f"engine.args.{model.argument}", model.name) for model in found)):
        place = _on_host(name, engine)
        if policy.models and not _is_allowed_model(place, policy, look):
            yield Refusal(key, f"{name} is not allowed ({_listed(policy.models)})", "models", name)
        elif not policy.models and (path_patterns.climbs(name) or path_patterns.addresses_in(name)):
            yield Refusal(key, f"{name} is neither a plain path nor a name of the hub", "models", name)
        elif place.startswith(("/", "~")) and _is_private(look.real(_at_home(place, look)), look):
            yield Refusal(key, f"{name} lies in a folder of the system or of the agent")
    is_on = engine.args.get("trust_remote_code") not in (None, False)
    if is_on and not policy.models and "trust_remote_code" not in policy.args:
        told = f"runs code that {engine.model_path} brings, and no model is named whose code may run here"
        yield Refusal("engine.args.trust_remote_code", told, "models", engine.model_path)


def _on_host(name: str, engine: EngineSpec) -> str:
    """The place on the host that a path means to a server in a container."""
    for inside, outside in sorted(engine.container.mounts.items(), key=lambda mount: -len(mount[0])):
        if engine.container.image and name.startswith("/") and path_patterns.inside(name, inside):
            return outside.removesuffix(":ro").removesuffix(":rw").rstrip("/") + name[len(inside.rstrip("/")) :]
    return name


def _is_allowed_model(name: str, policy: Policy, look: Look) -> bool:
    if path_patterns.climbs(name):
        return False
    if not name.startswith(("/", "~/")):
        return any(path_patterns.matches(name, pattern) for pattern in policy.models)
    written = _at_home(name, look)
    return _is_below(written, policy.models, look, links=False) and _is_below(look.real(written), policy.models, look, links=True)


def _of_mounts(engine: EngineSpec, policy: Policy, look: Look) -> Iterator[Refusal]:
    for inside, outside in engine.container.mounts.items():
        source = outside.removesuffix(":ro").removesuffix(":rw")
        allowed = (*policy.mounts, *policy.models) if outside.endswith(":ro") else policy.mounts
        if not _confined(source, allowed, look):
            entry = "" if _is_private(_at_home(source, look), look) else source
            told = f"{source} may not be mounted ({_listed(allowed)})" if entry else f"{source} is a folder of the system or of the agent"
            yield Refusal(f"engine.container.mounts.{inside}", told, "mounts" if entry else "", entry)


def _of_url(url: str) -> Iterator[Refusal]:
    """Any server may be measured but those that only a host itself can ask, such as a cloud's metadata."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        is_odd = host.rstrip(".").lower() in _METADATA
    else:
        address = getattr(address, "ipv4_mapped", None) or address
        is_odd = address.is_link_local or address.is_multicast or address.is_unspecified or address == _METADATA_6
    if is_odd:
        yield Refusal("engine.url", f"{url} is no address of a server to measure")


def _listed(patterns: tuple[str, ...]) -> str:
    return f"allowed: {', '.join(patterns)}" if patterns else "none is allowed"
