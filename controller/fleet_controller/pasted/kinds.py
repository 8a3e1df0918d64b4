"""Owns how it is told what a pasted file is: shell text, compose file, manifest, Dockerfile, systemd unit, or a job; reads none."""

from __future__ import annotations

import re

from fleet_controller.pasted.entry import names_a_launch

SHELL, COMPOSE, MANIFEST, DOCKERFILE, UNIT = "shell", "compose", "manifest", "dockerfile", "unit"
_JOB = re.compile(r"^(?:apiVersion:\s*[\"']?benchfleet/|(?:engine|workloads|factors|measure|baseline)\s*:)", re.MULTILINE)
_KUBERNETES = re.compile(r"^apiVersion:\s*[\"']?(?!benchfleet)[\w./-]+", re.MULTILINE)
_SERVICES = re.compile(r"^services:\s*(?:#.*)?$", re.MULTILINE)
_PODS = re.compile(r"^(?:kind:\s*(?:Pod|Deployment|StatefulSet|DaemonSet|LeaderWorkerSet|ReplicaSet)\b|\s*-?\s*containers:\s*$)", re.MULTILINE)
_FROM = re.compile(r"^\s*FROM\s+\S+", re.MULTILINE)
_IMAGE_COMMAND = re.compile(r"^(?:CMD|ENTRYPOINT)\s+\S", re.MULTILINE)
_UNIT = re.compile(r"^\s*(?:\[Service\]|ExecStart\s*=)", re.MULTILINE)
_SHELL_LINE = re.compile(r"^\s*(?:\$ )?(?:export\s+)?[A-Za-z_]\w*=|^#!.*\b(?:ba|z|da|k)?sh\b|^\s*(?:sudo\s+)?(?:docker|podman)\s+run\b", re.MULTILINE)
_FENCE = re.compile(r"^\s*(?:```|~~~).*$", re.MULTILINE)
_PROMPT = re.compile(r"^(\s*)(?:[\w.@:~/()-]*[$%]|!)[ \t]+(?=\S)|^(\s*)!(?=\w)", re.MULTILINE)


def plain_text(content: str) -> str:
    """The text with Unix line ends, without a byte-order mark, Markdown fences and prompts; lines keep their numbers."""
    text = content.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    text = re.sub("[\ud800-\udfff]", "?", text)
    return _PROMPT.sub(lambda found: found[1] or found[2] or "", _FENCE.sub("", text))


def kind_of(text: str) -> str:
    """What the text is; an empty text for what is none of these."""
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


def is_pasted(content: str) -> bool:
    """True for a file that `lint` reads as a pasted launch and not as a job."""
    text = plain_text(content)
    return not _JOB.search(text) and bool(kind_of(text))
