"""Checks whether a model folder has all files that a server needs, and whether
they are complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from fleet_protos.regular_file import open_regular_file

_LFS_POINTER = b"version https://git-lfs"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "tiktoken.model",
)
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.npcache")
_MAX_NAMED = 3
_LARGEST_INDEX_BYTES = 64 << 20


def describe_missing(path: Path, *, is_tokenizer: bool = False, is_dummy: bool = False) -> str:
    """Return what a model at this path lacks. Empty if nothing is known to be missing.

    A dummy model needs no weights.
    """
    if not path.exists():
        return f"{path} is not on this host"
    if path.is_file():
        return "" if os.access(path, os.R_OK) else f"{path} cannot be read by the agent's user"
    if not os.access(path, os.R_OK | os.X_OK):
        return f"{path} cannot be read by the agent's user"
    if is_tokenizer:
        return (
            ""
            if any((path / name).is_file() for name in _TOKENIZER)
            else f"{path} has no tokeniser"
        )
    if not _has_configuration(path):
        return f"{path} has no config.json"
    return "" if is_dummy else _missing_weights(path)


def _has_configuration(path: Path) -> bool:
    """Return whether the folder has a model configuration. Mistral calls it params.json. GGUF files
    contain their configuration.
    """
    return any((path / name).is_file() for name in ("config.json", "params.json")) or any(
        path.glob("*.gguf")
    )


def _missing_weights(path: Path) -> str:
    indexes = sorted(path.glob("*.index.json"))
    named = sorted({name for index in indexes for name in _shards(index)})
    if named:
        missing = [name for name in named if not _is_complete(path / name)]
        if not missing:
            return ""
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        return (
            f"{path} lacks {len(missing)} of {len(named)} weight files: "
            f"{', '.join(missing[:_MAX_NAMED])}{more}"
        )
    found = [file for pattern in _WEIGHTS for file in path.glob(pattern)]
    if not found:
        return f"{path} has no weights (safetensors, bin, pt, gguf)"
    broken = [file.name for file in found if not _is_complete(file)]
    return (
        f"{path}: {', '.join(broken[:_MAX_NAMED])} cannot be read, is incomplete, or is only a "
        "Git LFS pointer"
        if broken
        else ""
    )


def _shards(index: Path) -> Iterator[str]:
    try:
        with open_regular_file(index) as file:
            document = json.loads(file.read(_LARGEST_INDEX_BYTES))
    except (OSError, ValueError):
        return
    weights = document.get("weight_map") if isinstance(document, dict) else None
    yield from (str(name) for name in (weights or {}).values()) if isinstance(weights, dict) else ()


def _is_complete(file: Path) -> bool:
    """Return whether a file can be read, is not empty, is not a Git LFS pointer, and is as long as
    its header says.
    """
    try:
        with open_regular_file(file) as opened:
            head = opened.read(max(8, len(_LFS_POINTER)))
            size = os.fstat(opened.fileno()).st_size
            if not size or head.startswith(_LFS_POINTER):
                return False
            return file.suffix != ".safetensors" or _is_long_enough(head, size, opened.fileno())
    except OSError:
        return False


def _is_long_enough(head: bytes, size: int, descriptor: int) -> bool:
    """Return whether a safetensors file has all its data.

    Such a file begins with eight bytes that give the length of a JSON header. The header follows,
    and then data up to the largest offset in the header.
    """
    length = int.from_bytes(head[:8], "little")
    if 8 + length > size or length > 100 << 20:
        return False
    try:
        entries = json.loads(os.pread(descriptor, length, 8))
        ends = [
            entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False
    return size >= 8 + length + max(ends, default=0)
