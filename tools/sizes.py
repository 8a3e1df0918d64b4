"""Finds files and functions that are longer than the limits."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

FILE_LINES = 400
TEST_FILE_LINES = 600
FUNCTION_LINES = 60
SHORT_FUNCTION_LINES = 30
SHORT_FUNCTIONS_SHARE = 0.9
GENERATED = re.compile(r"_pb2(_grpc)?\.py$|/v1/\w+_values\.py$")


def tracked_python(root: Path) -> list[Path]:
    """Return the Python files that git tracks or would track below `root`, without
    generated ones.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.py"]
    names = subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    return [
        root / name
        for name in sorted(set(names))
        if name and not GENERATED.search(name) and (root / name).is_file()
    ]


def function_lengths(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first line, number of lines) of each function of a module, inner ones included.

    Decorators do not count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def findings(root: Path, files: Sequence[Path]) -> list[str]:
    """Return one line for each file or function above its limit, and one if too few functions are
    short.
    """
    found, lengths = [], []
    for file in files:
        source, place = file.read_text(encoding="utf-8"), file.relative_to(root)
        lines = source.count("\n")
        limit = TEST_FILE_LINES if place.parts[0] == "tests" else FILE_LINES
        if lines > limit:
            found.append(f"{place}: {lines} lines, at most {limit}: split it by noun")
        for name, first, length in function_lengths(source):
            lengths.append(length)
            if length > FUNCTION_LINES:
                found.append(
                    f"{place}:{first}: {name} has {length} lines, at most {FUNCTION_LINES}"
                )
    short = sum(length <= SHORT_FUNCTION_LINES for length in lengths) / max(len(lengths), 1)
    if lengths and short < SHORT_FUNCTIONS_SHARE:
        found.append(
            f"{short:.0%} of functions have at most {SHORT_FUNCTION_LINES} lines, but it must be"
            f" {SHORT_FUNCTIONS_SHARE:.0%}: split long functions"
        )
    return found


def main() -> int:
    """Print the findings; return 1 if there is one."""
    root = Path(__file__).resolve().parent.parent
    files = tracked_python(root)
    found = findings(root, files)
    print("\n".join(found) or f"sizes: {len(files)} files within their limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
