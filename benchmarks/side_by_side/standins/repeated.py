"""Owns one process that carries out `sglang.bench_serving`'s own command again and again: its start
takes a quarter of a minute.

Runs in SGLang's Python. A line of stdin is a JSON list of the command's words; a line on stdout
says that it is done, and what the command itself prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    """Until stdin ends. A command that fails ends the process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    command = importlib.import_module("sglang.benchmark.serving").cli_main
    for line in sys.stdin:
        sys.argv = ["sglang.bench_serving", *json.loads(line)]
        command()
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
