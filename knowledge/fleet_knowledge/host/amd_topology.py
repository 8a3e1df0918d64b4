"""Parses AMD's topology tables, `rocm-smi --showtopo` and `amd-smi topology`, into a device matrix.

Format: ROCm 5.7 to 7.0. The text has one section for each of weight, hops, link type and NUMA node.
amd-smi names GPUs by PCI address.
"""

from __future__ import annotations

import re

from fleet_knowledge.host.topology_matrix import AFFINITIES, Matrix, MatrixRow

_LINKS = re.compile(r"^[=\s]*(?:Link Type between two GPUs|LINK TYPE TABLE)[=:\s]*$", re.I | re.M)
_NODE = re.compile(r"GPU\[(\d+)\]\s*:\s*\(Topology\) Numa Node\s*:\s*(-?\d+)")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.I)


def read_amd_matrix(text: str) -> Matrix | None:
    """Return the matrix of link types; None if the text has no section of link types."""
    found = _LINKS.search(text)
    if found is None:
        return None
    lines = [line.split() for line in text[found.end() :].strip().split("\n")]
    names = lines[0]
    labels = {
        name: f"GPU{place}" if _ADDRESS.fullmatch(name) else name
        for place, name in enumerate(names)
    }
    nodes = read_amd_numa(text)
    rows: dict[str, MatrixRow] = {}
    for words in lines[1:]:
        if not words or words[0] not in labels:
            break
        label = labels[words[0]]
        cells = {
            labels[name]: "X" if word == "0" else word
            for name, word in zip(names, words[1:], strict=False)
        }
        node = nodes.get(label)
        rows[label] = MatrixRow(
            cells,
            {AFFINITIES[1]: str(node)} if node is not None else {},
            cut=len(words) <= len(names),
        )
    return Matrix(tuple(labels.values()), rows, tabs=True) if rows else None


def read_amd_numa(text: str) -> dict[str, int | None]:
    """Return the NUMA node of each GPU by its label.

    The node is None if the kernel does not know it (-1 in the text).
    """
    return {f"GPU{gpu}": int(node) if int(node) >= 0 else None for gpu, node in _NODE.findall(text)}
