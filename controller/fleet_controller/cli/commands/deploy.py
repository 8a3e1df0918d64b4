"""Implements `fleetctl deploy`: installs or updates agents on the hosts of the fleet file."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from fleet_controller.cli.fleet_file_option import load_required_fleet
from fleet_controller.cli.state_folder import resolve_state_folder
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.host_progress import host_progress_display
from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.deploy_context import DeployContext, HostResult
from fleet_controller.deploy.deploy_host import deploy_host
from fleet_controller.deploy.fan_out import (
    HostWork,
    deploy_threads,
    exit_code,
    run_on_hosts,
    select_hosts,
)
from fleet_controller.deploy.host_commands import command_json
from fleet_controller.deploy.wheel_bundle import Bundler, user_cache
from fleet_controller.pki.authority import Authority
from fleet_controller.pki.trust_path import trust_folder_path
from fleet_protos.errors import ConfigError


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Deploy agents and return the exit code. Raises ConfigError if no host can be deployed to."""
    return run_on_fleet(deploy_host, arguments, console)


def run_on_fleet(work: HostWork, arguments: argparse.Namespace, console: Console) -> int:
    """Run `work` on the selected hosts, print progress and results, and return the exit code.

    Raises ConfigError if the work is impossible on all hosts.
    """
    inventory = load_required_fleet(arguments)
    hosts = select_hosts(inventory, arguments.hosts)
    at_once = arguments.at_once or inventory.deploys_at_once
    if at_once < 1:
        raise ConfigError(
            f"--at-once {at_once}: must be at least 1",
            "leave the option out to use the value in the fleet file",
        )
    # paramiko's errors reach us as exceptions, which become messages.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    authority = Authority.open(
        trust_folder_path(arguments.trust, resolve_state_folder(arguments.state).path)
    )
    with host_progress_display([host.name for host in hosts], quiet=arguments.json) as progress:
        context = DeployContext(
            authority,
            _bundler(arguments),
            progress.update,
            deploy_threads(len(hosts), at_once),
            force=arguments.force,
            dry_run=arguments.dry_run,
        )
        try:
            results = asyncio.run(_run_on_hosts_and_close(work, hosts, context, at_once))
        except KeyboardInterrupt:
            if not arguments.dry_run:
                console.print_stderr(
                    f"some hosts are unfinished: run the same `fleetctl {arguments.command}` again"
                    " to finish them"
                )
            raise
    _print_results(arguments, console, results)
    return exit_code(results)


async def _run_on_hosts_and_close(
    work: HostWork, hosts: tuple[FleetHost, ...], context: DeployContext, at_once: int
) -> tuple[HostResult, ...]:
    try:
        return await run_on_hosts(hosts, work, context, at_once)
    finally:
        context.keyring.close()
        context.threads.shutdown(wait=False, cancel_futures=True)


def _bundler(arguments: argparse.Namespace) -> Bundler:
    wheels = getattr(arguments, "wheels", "")
    return Bundler(user_cache(os.environ), Path(wheels).expanduser() if wheels else None)


def _print_results(
    arguments: argparse.Namespace, console: Console, results: tuple[HostResult, ...]
) -> None:
    if arguments.json:
        console.print_json(
            {"hosts": [_result_json(result, with_commands=arguments.dry_run) for result in results]}
        )
        return
    for result in results:
        if arguments.dry_run and result.state in ("planned", "unchanged"):
            commands = result.commands or ("nothing to do",)
            console.print_lines([f"{result.host}:", *(f"  {command}" for command in commands)])
        _print_problem(console, result)


def _print_problem(console: Console, result: HostResult) -> None:
    if result.message:
        word = console.styled("error") if result.exit_code else "note"
        console.print_stderr(
            f"{word}: host {result.host}: {result.message}",
            *([f"  {result.hint}"] if result.hint else []),
        )
    for note in result.notes:
        console.print_stderr(f"note: host {result.host}: {note}")


def _result_json(result: HostResult, *, with_commands: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "host": result.host,
        "state": result.state,
        "version": result.version,
        "seconds": result.seconds,
        "message": result.message,
        "hint": result.hint,
        "notes": list(result.notes),
        "changes": len(result.commands),
    }
    if with_commands:
        fields["commands"] = [dict(command_json(command)) for command in result.commands]
    return fields
