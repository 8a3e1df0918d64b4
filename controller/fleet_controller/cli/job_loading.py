"""Owns `--prune`: a job file read without its variants that have no effect, and what is told about
them. Decides nothing.
"""

from __future__ import annotations

import argparse

from fleet_controller.cli.input_files import read_job_file
from fleet_controller.cli.terminal.console import Console
from fleet_controller.job_file.job_loader import LoadedJob
from fleet_controller.planning.equivalence import EquivalentVariant


def load_and_prune(
    arguments: argparse.Namespace, console: Console
) -> tuple[LoadedJob, tuple[EquivalentVariant, ...]]:
    """The job of `arguments.file`, pruned where asked, and what was left out; each is told."""
    loaded = read_job_file(arguments.file)
    if not arguments.prune:
        return loaded, ()
    from fleet_controller.job_file.prune_variants import prune_loaded_job

    result = prune_loaded_job(loaded)
    lines = [
        f"left out {twin.variant.name}: runs the same server as {twin.same_as.name} ({twin.why})"
        for twin in result.left_out
    ]
    console.print_stderr(*(lines or ["--prune: every variant has an effect, none is left out"]))
    return result.loaded, result.left_out
