"""Builds the wheel with the packages that an agent needs, from the running checkout or
installation.

The same content gives the same bytes. The controller is not in it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable

from fleet_protos import __version__

PACKAGES = (
    "fleet_agent",
    "fleet_knowledge",
    "fleet_protos",
    "fleet_simulator",
    "fleet_transport",
)
WHEEL_NAME = f"benchfleet-{__version__}-py3-none-any.whl"
_INFO = f"benchfleet-{__version__}.dist-info"
_METADATA = (
    f"Metadata-Version: 2.1\nName: benchfleet\nVersion: {__version__}\nRequires-Python: >=3.11\n"
)
_WHEEL = "Wheel-Version: 1.0\nGenerator: benchfleet\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The earliest time that a zip file can store: the digest must not depend on the time of packing.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_agent_wheel() -> bytes:
    """Return the content of the wheel."""
    contents = {
        f"{package}/{name}": content
        for package in PACKAGES
        for name, content in _package_files(files(package))
    }
    contents |= {f"{_INFO}/METADATA": _METADATA.encode(), f"{_INFO}/WHEEL": _WHEEL.encode()}
    record = "".join(
        f"{name},{_digest(content)},{len(content)}\n" for name, content in sorted(contents.items())
    )
    contents[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
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
