"""Builds the wheels of the agent and of the simulator from the running checkout or installation.

The same content gives the same bytes. Neither wheel contains the controller.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec

from fleet_protos import __version__

_WHEEL = "Wheel-Version: 1.0\nGenerator: benchfleet\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The earliest time that a zip file can store: the digest must not depend on the time of packing.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class OwnWheel:
    """One wheel of this project: the name of its distribution and the packages in it."""

    project: str
    packages: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """The name of the wheel's file."""
        return f"{self._stem}-py3-none-any.whl"

    @property
    def is_available(self) -> bool:
        """Whether the packages of this wheel are installed here."""
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def _stem(self) -> str:
        return f"{self.project.replace('-', '_')}-{__version__}"

    def build(self) -> bytes:
        """Return the content of the wheel."""
        contents = {
            f"{package}/{name}": content
            for package in self.packages
            for name, content in _package_files(files(package))
        }
        info = f"{self._stem}.dist-info"
        metadata = (
            f"Metadata-Version: 2.1\nName: {self.project}\nVersion: {__version__}\n"
            "Requires-Python: >=3.11\n"
        )
        contents |= {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": _WHEEL.encode()}
        record = "".join(
            f"{name},{_digest(content)},{len(content)}\n"
            for name, content in sorted(contents.items())
        )
        contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
        return _zip(contents)


AGENT_WHEEL = OwnWheel(
    "benchfleet", ("fleet_agent", "fleet_knowledge", "fleet_protos", "fleet_transport")
)
SIMULATOR_WHEEL = OwnWheel("benchfleet-simulator", ("fleet_simulator",))


def _zip(contents: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in sorted(contents.items()):
            about = zipfile.ZipInfo(name, _EPOCH)
            about.external_attr = 0o100644 << 16
            wheel.writestr(about, content, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def _package_files(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            found += _package_files(entry, f"{name}/")
        elif entry.is_file() and not entry.name.endswith((".pyc", ".proto")):
            found.append((name, entry.read_bytes()))
    return found


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip(
        "="
    )
