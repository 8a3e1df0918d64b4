"""Draws docstrings and messages of the product at random, for the reading test in
docs/reading-test.md.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.structure import Module, product

MESSAGE_WORDS = 5


def _text(node: ast.expr) -> str:
    """Return the text of a string or an f-string, with each placeholder's source in braces; else an
    empty text.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}"
            if isinstance(part, ast.FormattedValue)
            else _text(part)
            for part in node.values
        )
    return ""


def docstrings(modules: list[Module]) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each docstring of a module, class or function."""
    for module in modules:
        for node in ast.walk(ast.parse(module.text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = "" if isinstance(node, ast.Module) else f" {node.name}"
                    yield f"{module.path}{name}", text


def messages(modules: list[Module]) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each string that may be a message to a user."""
    for module in modules:
        tree = ast.parse(module.text)
        inner = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant | ast.JoinedStr)
                and id(node) not in inner | statements
            ):
                text = _text(node)
                if len(text.split()) >= MESSAGE_WORDS and "\n" not in text and text[:1].isalpha():
                    yield f"{module.path}:{node.lineno}", text


def main() -> int:
    """Print a draw for the given seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--docstrings", type=int, default=60)
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    arguments = parser.parse_args()
    modules, rng = product(arguments.root), random.Random(arguments.seed)
    for title, drawn, count in (
        ("Docstrings", sorted(docstrings(modules)), arguments.docstrings),
        ("Messages", sorted(messages(modules)), arguments.messages),
    ):
        print(f"# {title}\n")
        for number, (place, text) in enumerate(rng.sample(drawn, count), 1):
            print(f"{number}. [{place}]\n   {text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
