"""Detects what a pasted file is: shell text, a compose file, a manifest, a Dockerfile, a systemd
unit, or a job.
"""

from __future__ import annotations

import re

from fleet_controller.importers.entry_point import names_a_launch

SHELL, COMPOSE, MANIFEST, DOCKERFILE, UNIT = "shell", "compose", "manifest", "dockerfile", "unit"
_JOB = re.compile(
    r"^(?:apiVersion:\s*[\"']?benchfleet/|(?:engine|workloads|factors|measure|baseline)\s*:)",
    re.MULTILINE,
)
_KUBERNETES = re.compile(r"^apiVersion:\s*[\"']?(?!benchfleet)[\w./-]+", re.MULTILINE)
_SERVICES = re.compile(r"^services:\s*(?:#.*)?$", re.MULTILINE)
_PODS = re.compile(
    r"^(?:kind:\s*(?:Pod|Deployment|StatefulSet|DaemonSet|LeaderWorkerSet|ReplicaSet)\b"
    r"|[ \t]*(?:-[ \t]+)?containers:[ \t]*$)",
    re.MULTILINE,
)
_FROM = re.compile(r"^[ \t]*FROM[ \t]+\S+", re.MULTILINE)
_IMAGE_COMMAND = re.compile(r"^(?:CMD|ENTRYPOINT)\s+\S", re.MULTILINE)
_UNIT = re.compile(r"^[ \t]*(?:\[Service\]|ExecStart[ \t]*=)", re.MULTILINE)
_SHELL_LINE = re.compile(
    r"^[ \t]*(?:\$ )?(?:export[ \t]+)?[A-Za-z_]\w*=|^#!.*\b(?:ba|z|da|k)?sh\b"
    r"|^[ \t]*(?:sudo[ \t]+)?(?:docker|podman)[ \t]+run\b",
    re.MULTILINE,
)
_FENCE = re.compile(r"\s*(?:```|~~~)")
_PROMPT = re.compile(
    r"^([ \t]*)(?:[\w.@:~/()-]{0,80}[$%]|!)[ \t]+(?=\S)|^([ \t]*)!(?=\w)", re.MULTILINE
)


def plain_text(content: str) -> str:
    """Return the text with Unix line ends, without a byte-order mark, Markdown fences and prompts.
    Line numbers stay the same.
    """
    text = (
        content.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    )
    text = re.sub("[\ud800-\udfff]", "?", text)
    return _PROMPT.sub(lambda found: found[1] or found[2] or "", _within_fences(text))


def _within_fences(text: str) -> str:
    """Return the text with all lines outside of Markdown fences emptied. Text without fences stays
    as it is.
    """
    lines = text.split("\n")
    fences = sum(bool(_FENCE.match(line)) for line in lines)
    kept, inside = [], fences < 2
    for line in lines:
        is_fence = bool(_FENCE.match(line))
        inside = not inside if is_fence and fences >= 2 else inside
        kept.append(line if inside and not is_fence else "")
    return "\n".join(kept)


def source_kind(text: str) -> str:
    """Return the kind of the text, or an empty text if the kind is not recognised."""
    if _SERVICES.search(text) and not _KUBERNETES.search(text):
        return COMPOSE
    if _PODS.search(text):
        return MANIFEST
    if _UNIT.search(text):
        return UNIT
    if _FROM.search(text) and (_IMAGE_COMMAND.search(text) or not names_a_launch(text)):
        return DOCKERFILE
    if _IMAGE_COMMAND.match(text.lstrip()):
        return DOCKERFILE
    return SHELL if names_a_launch(text) or _SHELL_LINE.search(text) else ""


def is_importable(content: str) -> bool:
    """Return True for a file that `lint` reads as a pasted launch and not as a job."""
    text = plain_text(content)
    return not _JOB.search(text) and bool(source_kind(text))
