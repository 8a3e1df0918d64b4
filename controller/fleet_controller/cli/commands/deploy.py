"""Owns `fleetctl deploy` and `undeploy`: options in, progress and results out. What is done stands in `fleet_controller.deploy`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from fleet_controller.cli.fleet_file_option import fleet_of
from fleet_controller.cli.state_folder import places
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.host_progress import host_lines
from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.deploy_context import HostResult, Tools
from fleet_controller.deploy.deploy_host import deploy_host
from fleet_controller.deploy.fan_out import chosen, everywhere, exit_code, pool
from fleet_controller.deploy.host_commands import shown
from fleet_controller.deploy.undeploy_host import undeploy_host
from fleet_controller.deploy.wheel_bundle import Bundler, user_cache
from fleet_controller.pki.authority import Authority
from fleet_controller.pki.trust_path import trust_folder
from fleet_protos.errors import ConfigError


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Carry out one of the two commands. Raises ConfigError for what stands in the way of all hosts."""
    inventory = fleet_of(arguments)
    hosts = chosen(inventory, arguments.hosts)
    at_once = arguments.at_once or inventory.deploys_at_once
    if at_once < 1:
        raise ConfigError(f"--at-once {at_once}: at least one host at a time", "leave it out for the fleet file's")
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its errors come as exceptions, which are told in words
    authority = Authority.open(trust_folder(arguments.trust, places(arguments.state).state))
    with host_lines([host.name for host in hosts], quiet=arguments.json) as lines:
        tools = Tools(
            authority, _bundler(arguments), lines.say, pool(len(hosts), at_once), force=arguments.force, dry_run=arguments.dry_run
        )  # fmt: skip
        results = _to_the_end(arguments, hosts, tools, at_once, console)
    _tell(arguments, console, results)
    return exit_code(results)


def _to_the_end(
    arguments: argparse.Namespace, hosts: tuple[FleetHost, ...], tools: Tools, at_once: int, console: Console
) -> tuple[HostResult, ...]:
    try:
        return asyncio.run(_everywhere(arguments.command, hosts, tools, at_once))
    except KeyboardInterrupt:
        if not arguments.dry_run:
            console.tell(f"hosts are left as far as they came: the same `fleetctl {arguments.command}` again finishes them")
        raise


async def _everywhere(command: str, hosts: tuple[FleetHost, ...], tools: Tools, at_once: int) -> tuple[HostResult, ...]:
    try:
        return await everywhere(hosts, deploy_host if command == "deploy" else undeploy_host, tools, at_once)
    finally:
        tools.keyring.close()
        tools.threads.shutdown(wait=False, cancel_futures=True)


def _bundler(arguments: argparse.Namespace) -> Bundler:
    wheels = getattr(arguments, "wheels", "")
    return Bundler(user_cache(os.environ), Path(wheels).expanduser() if wheels else None)


def _tell(arguments: argparse.Namespace, console: Console, results: tuple[HostResult, ...]) -> None:
    if arguments.json:
        console.json({"hosts": [_as_json(result, with_commands=arguments.dry_run) for result in results]})
        return
    for result in results:
        if arguments.dry_run and result.state in ("planned", "unchanged"):
            console.lines([f"{result.host}:", *(f"  {command}" for command in result.commands or ("nothing to do",))])
        _tell_trouble(console, result)


def _tell_trouble(console: Console, result: HostResult) -> None:
    if result.message:
        word = console.styled("error") if result.exit_code else "note"
        console.tell(f"{word}: host {result.host}: {result.message}", *([f"  {result.hint}"] if result.hint else []))
    for note in result.notes:
        console.tell(f"note: host {result.host}: {note}")


def _as_json(result: HostResult, *, with_commands: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "host": result.host, "state": result.state, "version": result.version, "seconds": result.seconds, "message": result.message,
        "hint": result.hint, "notes": list(result.notes), "changes": len(result.commands),
    }  # fmt: skip
    if with_commands:
        told["commands"] = [dict(shown(command)) for command in result.commands]
    return told
