"""Runs `sglang.bench_serving`'s own command again and again in one process, because its start takes
15 seconds.

It runs in SGLang's Python. A line on stdin is a JSON list of the command's words. It writes a line
to stdout when the command is done; what the command itself prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    """Run commands until stdin ends; a command that fails ends the process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    command = importlib.import_module("sglang.benchmark.serving").cli_main
    for line in sys.stdin:
        sys.argv = ["sglang.bench_serving", *json.loads(line)]
        command()
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
