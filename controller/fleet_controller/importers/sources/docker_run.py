"""Reads `docker run`, `podman run` and similar commands: options, image, and the words that run
inside the container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.sources.launch_values import LaunchContainer, StartedCommand
from fleet_controller.yaml.finding_collector import FindingCollector

_RUNTIMES = frozenset({"docker", "podman", "nerdctl", "nvidia-docker", "docker.io"})
_VERBS = frozenset({"run", "create"})
# Options without a value; all others take one. Source: docker 20.10 - 28 and podman 4 - 5 `run
# --help`.
_SWITCHES = frozenset({
    "detach", "interactive", "tty", "rm", "init", "privileged", "publish-all", "read-only",
    "no-healthcheck", "oom-kill-disable", "sig-proxy", "disable-content-trust", "quiet", "help",
    "replace", "tls-verify", "no-hosts", "no-hostname", "rmi", "env-host", "http-proxy", "passwd",
})  # fmt: skip
_SHORT_SWITCHES = frozenset("ditPq")  # in one word, as in `-itd`
_SHORT_NAMES = {
    "e": "env",
    "v": "volume",
    "p": "publish",
    "w": "workdir",
    "u": "user",
    "h": "hostname",
    "m": "memory",
    "l": "label",
}
_QUIET = frozenset({
    "rm", "detach", "interactive", "tty", "name", "network", "net", "hostname", "label", "pull",
    "init", "restart", "log-opt", "log-driver", "quiet", "replace", "security-opt",
})  # fmt: skip
_HANDLED = frozenset(
    {
        "env",
        "volume",
        "mount",
        "publish",
        "shm-size",
        "ipc",
        "gpus",
        "runtime",
        "entrypoint",
        "env-file",
        "device",
    }
)

Options = list[tuple[str, SourceText]]


def read_docker_run(start: StartedCommand, notes: FindingCollector) -> StartedCommand | None:
    """Return what runs inside the container of a `docker run` line, or None if the words contain no
    such line.
    """
    place = _find_run(start.words)
    if place is None:
        return None
    runtime, at = start.words[place], place + 1
    while at < len(start.words) and start.words[at].text not in _VERBS:
        at += 1
    options, at = _options(start.words, at + 1)
    if at >= len(start.words):
        notes.error(
            "image_missing",
            runtime.line,
            f"`{runtime.text} run` does not name an image",
            "check whether the rest of the line was cut off",
        )
        return replace(start, words=())
    image, words = start.words[at], list(start.words[at + 1 :])
    entrypoint = [value for name, value in options if name == "entrypoint"][-1:]
    words = [value for value in entrypoint if value.text] + words
    container = _launch_container(image, runtime, options, notes)
    _report_options(options, notes)
    _report_missing_options(options, image, notes)
    inside_env = {
        name: start.env.get(name, value) if value.text == f"${name}" else value
        for name, value in _env(options)
    }
    _warn_outside(start.env, inside_env, notes)
    return replace(start, words=tuple(words), env=inside_env, container=container, line=image.line)


def _find_run(words: Sequence[SourceText]) -> int | None:
    for place, word in enumerate(words):
        if word.text.rpartition("/")[2] in _RUNTIMES:
            following = [other.text for other in words[place + 1 : place + 6]]
            verb = next(
                (
                    text
                    for text in following
                    if not text.startswith("-") and text not in ("container", "compose")
                ),
                "",
            )
            return place if verb in _VERBS and "compose" not in following else None
    return None


def _options(words: Sequence[SourceText], at: int) -> tuple[Options, int]:
    found: Options = []
    while at < len(words) and (words[at].text.startswith("-") or words[at].is_open):
        word = words[at]
        at += 1
        if word.text == "--":
            break
        if not word.text.startswith("-"):
            found.append(("", word))
            continue
        for name, value, takes_next in _split(word):
            if takes_next:
                found.append((name, words[at] if at < len(words) else SourceText("", word.line)))
                at += 1
            else:
                found.append((name, value))
    return found, at


def _split(word: SourceText) -> Iterator[tuple[str, SourceText, bool]]:
    """Yield each option in one word, such as `--rm`, `--gpus=all`, `-it` or `-p80:80`: its name,
    its value, and whether the value is the next word.
    """
    if word.text.startswith("--"):
        name, equals, value = word.text[2:].partition("=")
        yield name, replace(word, text=value), not equals and name not in _SWITCHES
        return
    letters = word.text[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in _SHORT_SWITCHES:
            yield letter, replace(word, text=""), False
            continue
        rest = letters.removeprefix("=")
        yield _SHORT_NAMES.get(letter, letter), replace(word, text=rest), not rest
        return


def _launch_container(
    image: SourceText, runtime: SourceText, options: Options, notes: FindingCollector
) -> LaunchContainer:
    last = {name: value.text for name, value in options}
    name = runtime.text.rpartition("/")[2]
    gpus = last.get("gpus", "")
    found = re.search(r"device=([\w,.-]+)", gpus.replace('"', ""))
    ids = tuple(found[1].split(",")) if found else _cdi_ids(options)
    return LaunchContainer(
        image=image,
        line=image.line,
        runtime="podman" if name == "podman" else "docker",
        shm_size=last.get("shm-size", ""),
        ipc=last.get("ipc", ""),
        gpu_ids=ids,
        gpu_count=len(ids) or (int(gpus) if gpus.isdecimal() else None),
        mounts=dict(_mounts(options, notes)),
        ports=dict(_ports(options)),
    )


def _cdi_ids(options: Options) -> tuple[str, ...]:
    """Return the GPU ids of `--device nvidia.com/gpu=0`, podman's notation."""
    listed = [
        value.text.partition("=")[2]
        for name, value in options
        if name == "device" and value.text.startswith("nvidia.com/gpu=")
    ]
    return tuple(listed) if "all" not in listed else ()


def _env(options: Options) -> Iterator[tuple[str, SourceText]]:
    for name, value in options:
        if name != "env" or not value.text:
            continue
        key, equals, text = value.text.partition("=")
        unset = SourceText(f"${key}", value.line, (key,))
        yield key, replace(value, text=text, is_open=False) if equals else unset


def _mounts(options: Options, notes: FindingCollector) -> Iterator[tuple[str, SourceText]]:
    for name, value in options:
        if name == "volume":
            yield from read_mount(value, notes)
        elif name == "mount":
            parts = dict(part.partition("=")[::2] for part in value.text.split(","))
            source, target = (
                parts.get("source", parts.get("src", "")),
                parts.get("target", parts.get("dst", parts.get("destination", ""))),
            )
            if source and target:
                only = ":ro" if "readonly" in parts or "ro" in parts else ""
                yield from read_mount(replace(value, text=f"{source}:{target}{only}"), notes)


def read_mount(value: SourceText, notes: FindingCollector) -> Iterator[tuple[str, SourceText]]:
    """Yield the path inside and the path on the host of `/host:/inside[:ro]`. A volume without a
    path on the host is only reported.
    """
    parts = value.text.split(":")
    if len(parts) >= 2 and re.match(r"[A-Za-z0-9]", parts[0]):
        volume, inside = parts[0][:60], parts[1][:80]
        message = f"the volume `{volume}` is not a folder on the host: it is left out"
        hint = f"write a folder on the host for {inside} into engine.container.mounts"
        notes.warn("not_supported", value.line, message, hint, "volume")
    elif len(parts) >= 2:
        only = ":ro" if len(parts) > 2 and "ro" in parts[2].split(",") else ""
        yield parts[1], with_tilde(replace(value, text=parts[0] + only, is_open=False))


def with_tilde(value: SourceText) -> SourceText:
    """Return a path below `$HOME` as `~/…`, because the agent knows the user's home."""
    text = re.sub(r"^\$HOME(?=/|$)", "~", value.text)
    return (
        value
        if text == value.text
        else replace(
            value, text=text, unknown=tuple(name for name in value.unknown if name != "HOME")
        )
    )


def _ports(options: Options) -> Iterator[tuple[str, str]]:
    for name, value in options:
        if name == "publish":
            yield from read_port(value.text)


def read_port(text: str) -> Iterator[tuple[str, str]]:
    """Yield the port inside and the port on the host of `8011:8000`, `127.0.0.1:8011:8000/tcp` or
    `8000`.
    """
    parts = text.partition("/")[0].rsplit(":", 2)
    yield parts[-1], parts[-2] if len(parts) > 1 else parts[-1]


def _report_options(options: Options, notes: FindingCollector) -> None:
    for name, value in options:
        if name == "env-file":
            message = f"the variables of `{value.text[:80]}` are not part of the pasted text"
            notes.warn(
                "not_supported",
                value.line,
                message,
                "write the variables that the server needs into engine.env",
                "env-file",
            )
        elif name == "":
            notes.warn(
                "not_supported",
                value.line,
                f"`{value.text}` may contain options of the container",
                "paste its value",
                "container",
            )
        elif name == "device" and value.text.startswith("/dev/infiniband"):
            notes.info(
                "dropped",
                value.line,
                f"the device `{value.text[:60]}` is left out",
                "the agent passes only GPUs to the container",
                "device",
            )
        elif name not in _HANDLED and name not in _QUIET and name not in _SHORT_SWITCHES:
            spelled = f"--{name}" if len(name) > 1 else f"-{name}"
            notes.info(
                "dropped",
                value.line,
                (
                    f"`{spelled}` of the container is left out: the agent configures the container "
                    "itself"
                ),
                "",
                name,
            )


def _report_missing_options(options: Options, image: SourceText, notes: FindingCollector) -> None:
    names = {name for name, _ in options}
    shares_memory = any(name == "ipc" and value.text == "host" for name, value in options)
    if "shm-size" not in names and not shares_memory:
        message = (
            "neither `--shm-size` nor `--ipc=host` is given: docker's 64 MiB of shared memory are "
            "too little for NCCL between GPUs"
        )
        hint = (
            "without engine.container.shm_size, the agent shares the host's memory with the "
            "container"
        )
        notes.info("shm_default", image.line, message, hint, "engine.container.shm_size")


def _warn_outside(
    outside: Mapping[str, SourceText], inside: Mapping[str, SourceText], notes: FindingCollector
) -> None:
    lost = [
        name
        for name in outside
        if name.startswith(("NCCL_", "SGLANG_", "CUDA_")) and name not in inside
    ]
    for name in lost:
        message = (
            f"{name} is set outside the container without `-e {name}`, so the server does not get "
            "it"
        )
        notes.warn(
            "no_effect",
            outside[name].line,
            message,
            f"add `-e {name}` to the command, or write {name} into engine.env",
            name,
        )
