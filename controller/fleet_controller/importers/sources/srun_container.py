"""Reads the container that `srun` starts by itself (the pyxis plug-in): image and mounts."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.sources.launch_values import LaunchContainer
from fleet_controller.yaml.finding_collector import FindingCollector

_IMAGE, _MOUNTS = "--container-image", "--container-mounts"


def srun_container(words: Sequence[SourceText], notes: FindingCollector) -> LaunchContainer | None:
    """Return the container of `srun` among the words before a server's entry point, or None if
    there is none or its image is a file.
    """
    image, mounts = _option(words, _IMAGE), _option(words, _MOUNTS)
    if image is None:
        return None
    if image.text.startswith(("/", ".", "~")):
        message = (
            f"the container's image is the file `{image.text[:100]}`, which docker and podman "
            "cannot run; it is left out"
        )
        notes.warn(
            "not_supported",
            image.line,
            message,
            "write an image into engine.container, or a Python into engine.python",
            "container",
        )
        return None
    name = SourceText(image.text.replace("#", "/", 1), image.line, image.unknown, image.unevaluated)
    return LaunchContainer(image=name, line=image.line, mounts=_mounts(mounts))


def _option(words: Sequence[SourceText], name: str) -> SourceText | None:
    """Return the value of an option written as `--name=value` or as two words, or None."""
    for place, word in enumerate(words):
        if word.text.startswith(f"{name}="):
            return SourceText(word.text[len(name) + 1 :], word.line, word.unknown, word.unevaluated)
        if word.text == name and place + 1 < len(words):
            return words[place + 1]
    return None


def _mounts(given: SourceText | None) -> dict[str, SourceText]:
    """Read `HOST:INSIDE[:ro]` entries separated by commas. An entry without a colon names the same
    path on both sides.
    """
    found = {}
    for mount in given.text.split(",") if given else ():
        host, _, rest = mount.partition(":")
        inside, _, mode = rest.partition(":")
        if host and given:
            found[inside or host] = SourceText(
                f"{host}:ro" if mode == "ro" else host, given.line, given.unknown, given.unevaluated
            )
    return found
