"""Loads the job file that a command names, and applies `--prune` if it is given."""

from __future__ import annotations

import argparse

from fleet_controller.cli.input_files import base_folder, read_bytes
from fleet_controller.cli.terminal.console import Console
from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.planning.equivalence import EquivalentVariant


def load_and_prune(
    arguments: argparse.Namespace, console: Console
) -> tuple[LoadedJob, tuple[EquivalentVariant, ...]]:
    """Load `arguments.file`. With `--prune`, also print and return the variants that are left out.

    Raises JobRejected with all findings. Raises ConfigError for a file that cannot be read.
    """
    name = arguments.file
    loaded = load_job(read_bytes(name), name, base_folder(name))
    if not arguments.prune:
        return loaded, ()
    from fleet_controller.job_file.prune_variants import prune_loaded_job

    result = prune_loaded_job(loaded)
    lines = [
        f"left out variant {twin.variant.name}: it runs the same server as {twin.same_as.name}"
        f" ({twin.why})"
        for twin in result.left_out
    ]
    console.print_stderr(
        *(lines or ["--prune: every variant changes its server; none was left out"])
    )
    return result.loaded, result.left_out
