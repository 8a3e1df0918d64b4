"""Reads Kubernetes manifests: words, variables, GPUs and shared memory of every container of any
kind of object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.sources.launch_values import LaunchContainer, StartedCommand
from fleet_controller.importers.sources.yaml_tree import YamlTree, as_mapping, as_tuple, read_trees
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_controller.yaml.key_path import KeyPath

GROUP_SIZE = "LWS_GROUP_SIZE"  # set by the operator of a LeaderWorkerSet, for the command line
_REFERENCE = re.compile(r"\$(?:\$|\((\w+)\))")
_GPU = re.compile(r"(?:nvidia|amd|gpu\.intel|habana|intel)\.(?:com|ai)/\S+")
_SECRET = "secret://"


def starts_of_manifest(text: str, notes: FindingCollector) -> list[StartedCommand]:
    """Return what each container starts, in file order. A leader's containers come before its
    workers' containers.
    """
    found = []
    for tree in read_trees(text, notes):
        pods = sorted(_pods(tree.value, ()), key=lambda path: "workerTemplate" in path)
        kind = str(as_mapping(tree.value).get("kind") or "")
        for path in pods:
            pod = tree.document.value_at(path, {})
            for place, container in enumerate(as_tuple(as_mapping(pod).get("containers"))):
                if isinstance(container, dict):
                    found.append(
                        _Container(
                            tree, (*path, "containers", place), container, as_mapping(pod), notes
                        ).start()
                    )
        _report_size(tree, kind, notes)
    return found


def _pods(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of all mappings that have `containers`."""
    if len(path) > 12:
        return
    if isinstance(value, dict):
        if isinstance(value.get("containers"), tuple):
            yield path
        for key, entry in value.items():
            yield from _pods(entry, (*path, key))
    elif isinstance(value, tuple):
        for place, entry in enumerate(value):
            yield from _pods(entry, (*path, place))


def _group_size_variable(tree: YamlTree) -> dict[str, SourceText]:
    """Return the variable in which a LeaderWorkerSet passes its number of hosts to the
    containers.
    """
    path = ("spec", "leaderWorkerTemplate", "size")
    size = as_mapping(
        as_mapping(as_mapping(tree.value).get("spec")).get("leaderWorkerTemplate")
    ).get("size")
    return {GROUP_SIZE: tree.argument(path, size)} if str(size or "").isdecimal() else {}


def _report_size(tree: YamlTree, kind: str, notes: FindingCollector) -> None:
    spec = as_mapping(as_mapping(tree.value).get("spec"))
    if kind == "LeaderWorkerSet":
        size = as_mapping(spec.get("leaderWorkerTemplate")).get("size")
        hosts = size or "several"
        message = f"a LeaderWorkerSet is one server over {hosts} hosts"
        notes.warn(
            "not_supported",
            tree.line(("spec",)),
            message,
            "only the leader's command is read",
            kind,
        )
    elif str(spec.get("replicas") or "1") != "1":
        message = f"{spec['replicas']} replicas: a job launches one server on each host"
        notes.info(
            "dropped",
            tree.line(("spec", "replicas")),
            message,
            "choose the hosts in `hosts`",
            "replicas",
        )


class _Container:
    def __init__(
        self,
        tree: YamlTree,
        path: KeyPath,
        value: Mapping[str, Any],
        pod: Mapping[str, Any],
        notes: FindingCollector,
    ) -> None:
        self._tree = tree
        self._path = path
        self._value = value
        self._pod = pod
        self._notes = notes
        self._env = dict(self._variables()) | _group_size_variable(tree)

    def start(self) -> StartedCommand:
        words = (*self._words("command"), *self._words("args"))
        line = words[0].line if words else self._tree.line(self._path)
        return StartedCommand(
            words,
            line,
            self._env,
            self._launch_container(),
            place=str(self._value.get("name") or ""),
        )

    def _words(self, key: str) -> tuple[SourceText, ...]:
        value, path = self._value.get(key), (*self._path, key)
        if isinstance(value, str):
            message = f"`{key}` of a container must be a list, but it is one text"
            self._notes.warn(
                "wrong_type", self._tree.line(path), message, f"write `{key}: [{value[:40]!r}, …]`"
            )
            return tuple(self._referenced((*path,), part) for part in value.split())
        items = enumerate(as_tuple(value))
        return tuple(
            self._referenced((*path, place), item)
            for place, item in items
            if not isinstance(item, dict | tuple)
        )

    def _referenced(self, path: KeyPath, value: Any) -> SourceText:
        """Replace `$(NAME)` with the value of the container's variable, and `$$` with `$`."""
        unknown: dict[str, None] = {}

        def found(match: re.Match[str]) -> str:
            name = match[1]
            if not name:
                return "$"
            known = self._env.get(name)
            if known is not None and known.is_known:
                return known.text
            unknown[name] = None
            return f"${name}"

        whole = self._tree.argument(path, value)
        return SourceText(_REFERENCE.sub(found, whole.text), whole.line, tuple(unknown))

    def _variables(self) -> Iterator[tuple[str, SourceText]]:
        for place, entry in enumerate(as_tuple(self._value.get("env"))):
            name, source = (
                as_mapping(entry).get("name"),
                as_mapping(as_mapping(entry).get("valueFrom")),
            )
            if "fieldRef" in source or "resourceFieldRef" in source:
                line = self._tree.line((*self._path, "env", place, "name"))
                self._notes.info(
                    "dropped",
                    line,
                    f"{name} is left out: it describes the pod, and the job runs without one",
                    "",
                    str(name),
                )
            elif isinstance(name, str):
                yield name, self._variable(name, as_mapping(entry), (*self._path, "env", place))
        for place, _ in enumerate(as_tuple(self._value.get("envFrom"))):
            line = self._tree.line((*self._path, "envFrom", place))
            message = "the variables of `envFrom` are not part of the pasted text"
            self._notes.warn(
                "not_supported",
                line,
                message,
                "write the variables that the server needs into engine.env",
                "envFrom",
            )

    def _variable(self, name: str, entry: Mapping[str, Any], path: KeyPath) -> SourceText:
        source = as_mapping(entry.get("valueFrom"))
        line = self._tree.line((*path, "value") if "value" in entry else (*path, "name"))
        if "secretKeyRef" in source:
            return SourceText(f"{_SECRET}{name}", line)
        if source:
            return SourceText(f"${name}", line, (name,))
        return SourceText(str(entry.get("value") if entry.get("value") is not None else ""), line)

    def _launch_container(self) -> LaunchContainer:
        image = self._tree.argument((*self._path, "image"), self._value.get("image"))
        gpus = self._gpus()
        return LaunchContainer(
            image=image,
            line=image.line,
            shm_size=self._shared_memory(),
            gpu_count=int(gpus) if gpus.isdecimal() else None,
            mounts=dict(self._mounts()),
            ports=self._ports(),
        )

    def _ports(self) -> dict[str, str]:
        ports = map(as_mapping, as_tuple(self._value.get("ports")))
        return {
            str(port.get("containerPort", "")): str(port.get("hostPort") or "") for port in ports
        }

    def _gpus(self) -> str:
        resources = as_mapping(self._value.get("resources"))
        for part in ("limits", "requests"):
            for name, count in as_mapping(resources.get(part)).items():
                if _GPU.fullmatch(name):
                    return str(count)
        return ""

    def _shared_memory(self) -> str:
        """Return the size limit of the memory volume at /dev/shm in a container runtime's
        notation.
        """
        volumes = {
            str(as_mapping(volume).get("name")): as_mapping(volume)
            for volume in as_tuple(self._pod.get("volumes"))
        }
        for mount in map(as_mapping, as_tuple(self._value.get("volumeMounts"))):
            folder = as_mapping(volumes.get(str(mount.get("name")), {}).get("emptyDir"))
            if mount.get("mountPath") == "/dev/shm" and folder:
                size = re.match(r"(\d+)([KMGT]?)i?", str(folder.get("sizeLimit") or ""))
                return f"{size[1]}{size[2].lower()}" if size else ""
        return ""

    def _mounts(self) -> Iterator[tuple[str, SourceText]]:
        volumes = {
            str(as_mapping(volume).get("name")): as_mapping(volume)
            for volume in as_tuple(self._pod.get("volumes"))
        }
        for place, mount in enumerate(map(as_mapping, as_tuple(self._value.get("volumeMounts")))):
            path, volume = (
                (*self._path, "volumeMounts", place),
                volumes.get(str(mount.get("name")), {}),
            )
            inside, host = (
                str(mount.get("mountPath") or ""),
                as_mapping(volume.get("hostPath")).get("path"),
            )
            if inside in ("", "/dev/shm"):
                continue
            if host:
                only = ":ro" if mount.get("readOnly") == "true" else ""
                yield inside, SourceText(f"{host}{only}", self._tree.line(path))
            else:
                message = (
                    f"the volume at `{inside[:80]}` is not a folder on the host: it is left out"
                )
                hint = "write the host's folder into engine.container.mounts"
                self._notes.warn("not_supported", self._tree.line(path), message, hint, "volume")
