"""Checks the shape of the code: modules per folder, imports between folders, and flagged words.

`--figures` only prints figures of a tree (`--root DIR`), so that two commits can be compared.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FOLDER_MODULES = 20
CROWDED = ("controller/fleet_controller/cli/commands",)  # one module a command
TINY_LINES = 40
GENERATED = re.compile(r"_pb2(_grpc)?\.py$|/v1/\w+_values\.py$")
SOURCES = ("protos", "knowledge", "agent", "controller", "simulator")
# Words that readers stumble over. Write instead: report, log, say, return; "is not a"; again; next
# to; the user, the client.
FLAGGED = re.compile(
    r"\b(told|tells?|telling|anew|whoever|for ever|hang(?:s|ing)? up|stands? in the way"
    r"|come(?:s)? to be|(?<!there )is no (?!longer)(?:[a-z]+)|beside|lies? in"
    r"|mend(?:s|ed|ing)?|knows? not|none of an? )\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Module:
    """A Python file of the product, by its path from the root of the tree."""

    path: PurePosixPath
    text: str

    @property
    def name(self) -> str:
        """The dotted name; for `__init__.py` that of its folder."""
        parts = self.path.with_suffix("").parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def folder(self) -> str:
        """The dotted name of the folder."""
        return ".".join(self.path.parent.parts[1:])

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.text.count("\n")


def product(root: Path) -> list[Module]:
    """Return all modules of the product that git tracks or would track, without generated ones."""
    command = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *(f"{top}/*.py" for top in SOURCES),
    ]
    names = subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True
    ).stdout.split()
    kept = [
        name
        for name in sorted(set(names))
        if not GENERATED.search(name) and (root / name).is_file()
    ]
    return [Module(PurePosixPath(name), (root / name).read_text(encoding="utf-8")) for name in kept]


def imported(module: Module, known: dict[str, str]) -> Iterator[str]:
    """Yield the names of the product's modules that this one imports; `known` maps each name to its
    folder.
    """
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known:
                    yield name
                elif node.module in known:
                    yield node.module


def mutual_folders(modules: Sequence[Module]) -> list[tuple[str, str]]:
    """Return the pairs of folders that import each other."""
    known = {module.name: module.folder for module in modules}
    edges = {(module.folder, known[name]) for module in modules for name in imported(module, known)}
    return sorted((one, other) for one, other in edges if one < other and (other, one) in edges)


def crowded(modules: Sequence[Module]) -> list[str]:
    """Return one line for each folder with too many modules."""
    counts = Counter(
        str(module.path.parent) for module in modules if module.path.name != "__init__.py"
    )
    return [
        f"{folder}: {count} modules, at most {FOLDER_MODULES}: split the folder by subject"
        for folder, count in sorted(counts.items())
        if count > FOLDER_MODULES and folder not in CROWDED
    ]


def flagged(modules: Sequence[Module]) -> list[str]:
    """Return one line for each line of the product that contains a flagged word."""
    return [
        f"{module.path}:{number}: '{found[0]}': write it plainly (CONTRIBUTING.md)"
        for module in modules
        for number, line in enumerate(module.text.splitlines(), 1)
        if (found := FLAGGED.search(line))
    ]


def tree(modules: Sequence[Module]) -> list[str]:
    """Return the folders as an indented list, each with the first sentence of its `__init__.py`."""
    lines = []
    for module in sorted(modules, key=lambda module: module.path.parent.parts):
        if module.path.name == "__init__.py":
            depth = len(module.path.parts) - 3
            place = module.path.parent.name if depth else module.path.parent
            purpose = (ast.get_docstring(ast.parse(module.text)) or "").split("\n\n")[0]
            lines.append(f"{'  ' * depth}{place}/".ljust(32) + " ".join(purpose.split()))
    return lines


def figures(modules: Sequence[Module]) -> list[str]:
    """Return the figures of a tree, one per line."""
    counts = Counter(
        str(module.path.parent) for module in modules if module.path.name != "__init__.py"
    )
    lengths = sorted(module.lines for module in modules)
    functions = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in ast.walk(ast.parse(module.text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    words = Counter(found.lower() for module in modules for found in FLAGGED.findall(module.text))
    common = ", ".join(f"{word} {count}" for word, count in words.most_common(12))
    tiny = sum(
        module.lines <= TINY_LINES and module.path.name != "__init__.py" for module in modules
    )
    return [
        f"modules {len(modules)}, folders {len(counts)}, lines {sum(lengths)}",
        "modules a folder: "
        + ", ".join(f"{folder} {count}" for folder, count in sorted(counts.items())),
        f"lines a file: median {statistics.median(lengths):.0f}, most {lengths[-1]}",
        f"lines a function: median {statistics.median(functions):.0f}, "
        f"90th percentile {functions[int(len(functions) * 0.9)]}, most {functions[-1]}",
        f"modules of at most {TINY_LINES} lines: {tiny}",
        f"folders that import each other: {len(mutual_folders(modules))} pairs",
        f"flagged words: {sum(words.values())} ({common})",
    ]


def main() -> int:
    """Print figures or findings; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--figures", action="store_true", help="print figures only")
    parser.add_argument("--tree", action="store_true", help="print the folders only")
    arguments = parser.parse_args()
    modules = product(arguments.root)
    if arguments.figures or arguments.tree:
        print("\n".join(figures(modules) if arguments.figures else tree(modules)))
        return 0
    mutual = [
        f"{one} and {other} import each other: move what both need"
        for one, other in mutual_folders(modules)
    ]
    found = [*crowded(modules), *mutual, *flagged(modules)]
    print("\n".join(found) or f"structure: {len(modules)} modules, each folder within its limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
