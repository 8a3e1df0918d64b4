"""Defines the options of the `fleetctl` commands as functions that can be combined."""

from __future__ import annotations

import argparse
from collections.abc import Callable

AddOptions = Callable[[argparse.ArgumentParser], None]


def positional(name: str, text: str) -> AddOptions:
    """Return a function that adds one required positional argument."""

    def add(command: argparse.ArgumentParser) -> None:
        command.add_argument(name, metavar=name.upper(), help=text)

    return add


def flag_option(option: str, text: str) -> AddOptions:
    """Return a function that adds an option without a value."""

    def add(command: argparse.ArgumentParser) -> None:
        command.add_argument(option, action="store_true", help=text)

    return add


def all_options(*parts: AddOptions) -> AddOptions:
    """Return a function that adds the options of all `parts`, in their order."""

    def add(command: argparse.ArgumentParser) -> None:
        for part in parts:
            part(command)

    return add


JOB_FILE = positional("file", "job file; - for standard input")
ANY_FILE = positional(
    "file", "job file, fleet file or existing launch command; - for standard input"
)
PRUNE = flag_option(
    "--prune", "leave out variants that would run the same server as another variant"
)
ONLY_CONNECTED = flag_option(
    "--only-connected",
    "leave out hosts that do not answer now; by default, their trials wait for these hosts",
)
JOB = positional("job", "job id, or the start of one")
TRIAL = positional("trial", "trial id")


def json_option(command: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    command.add_argument("--json", action="store_true", help="print JSON (see docs/json.md)")


def controller_option(command: argparse.ArgumentParser) -> None:
    """Add `--controller` and `--trust`."""
    command.add_argument(
        "--controller",
        default="",
        metavar="ADDRESS",
        help="controller to ask, as host:port or unix:/path (default: $FLEET_CONTROLLER, else the"
        " controller of the state folder)",
    )
    trust_option(command)


def trust_option(command: argparse.ArgumentParser) -> None:
    """Add `--trust`."""
    command.add_argument(
        "--trust",
        default="",
        metavar="DIR",
        help="trust folder, which holds the certificates (default: $BENCHFLEET_TRUST, else the one"
        " in the state folder)",
    )


def fleet_option(command: argparse.ArgumentParser) -> None:
    """Add `--fleet`. Its default is None, for which `find_fleet_file` applies the documented
    defaults.
    """
    command.add_argument(
        "--fleet",
        default=None,
        metavar="FILE",
        help="fleet file (default: $BENCHFLEET_FLEET, else ./fleet.yaml)",
    )


def attempt_option(command: argparse.ArgumentParser) -> None:
    """Add `--attempt`. 0 means the newest attempt."""
    command.add_argument(
        "--attempt", type=int, default=0, metavar="N", help="which attempt (default: the newest)"
    )


def diagnose_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `diagnose`."""
    command.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="server log, nvidia-smi output or benchmark output; - for standard input; several"
        " files are read as the hosts of one job",
    )


def init_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `init`."""
    command.add_argument(
        "folder", nargs="?", default=".", help="folder to write the files to (default: this one)"
    )
    command.add_argument("--force", action="store_true", help="overwrite existing files")
    command.add_argument(
        "--fleet",
        dest="with_fleet",
        action="store_true",
        help="for a fleet of hosts: also write fleet.yaml, and create the fleet's certificate"
        " authority",
    )
    command.add_argument(
        "--from-command",
        default=None,
        metavar="FILE",
        help="make a job file from an existing launch command: a shell script, compose file,"
        " Kubernetes manifest, Dockerfile or systemd unit; - for standard input",
    )
    command.add_argument(
        "--spec-sweep",
        default=None,
        metavar="LIST",
        help="make a job file from a sweep over speculative decoding: entries of batch size, steps,"
        " topk and draft tokens, such as '1,0,0,0 1,3,1,4'",
    )
    command.add_argument(
        "-o",
        "--output",
        default="",
        metavar="JOB",
        help="with --from-command or --spec-sweep: write the job file here (default: standard"
        " output)",
    )
    json_option(command)


def simulate_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `simulate`. Options that it does not know are passed on to the server."""
    command.allow_abbrev = False
    command.usage = "fleetctl simulate [any SGLang argument] [--simulation JSON]"
    command.add_argument(
        "--model-path",
        "--model",
        default="simulated/model",
        metavar="NAME",
        help="the model name that the server reports (default: simulated/model)",
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1)"
    )
    command.add_argument(
        "--port", type=int, default=30000, help="the port to listen at (default: 30000)"
    )
    command.add_argument(
        "--simulation",
        default="{}",
        metavar="JSON",
        help="the knobs of the simulation, for example '{\"time_scale\": 20}'"
        " (docs/simulated-engine.md)",
    )


def schema_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `schema`."""
    command.add_argument(
        "kind", choices=("job", "fleet"), help="the kind of file that the schema describes"
    )


def hosts_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `hosts`."""
    command.add_argument(
        "action",
        nargs="?",
        choices=("ls", "show", "check", "drain", "undrain", "revoke"),
        default="ls",
        help="ls: list all hosts (default); show: print all details of a host; check: find what"
        " prevents trials from running, without starting anything; drain: start no new trials on a"
        " host, and let the running ones finish; undrain: start trials there again, also after"
        " repeated failures; revoke: stop trusting the certificate of a host",
    )
    command.add_argument(
        "hosts", nargs="*", metavar="HOST", help="host names (check: all hosts by default)"
    )
    command.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="drain, revoke: the reason, shown to other users",
    )


def undeploy_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `undeploy`."""
    _fleet_work_options(
        command,
        "include hosts that run trials or have results that no controller has fetched; this ends"
        " those trials and deletes those results",
    )


def deploy_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `deploy`."""
    _fleet_work_options(
        command, "restart agents that run trials too; this ends the trials, which are then retried"
    )
    command.add_argument(
        "--wheels",
        default="",
        metavar="DIR",
        help="take the agent's wheels from this folder instead of a package index",
    )


def _fleet_work_options(command: argparse.ArgumentParser, force_text: str) -> None:
    command.add_argument(
        "hosts", nargs="*", metavar="HOST", help="host names (default: all of the fleet file)"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="print what would be done, without doing it"
    )
    command.add_argument(
        "--at-once",
        type=int,
        default=0,
        metavar="N",
        help="number of hosts to work on at a time (default: the value in the fleet file, else 16)",
    )
    command.add_argument("--force", action="store_true", help=force_text)
    fleet_option(command)
    trust_option(command)


def trust_command_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `trust`."""
    command.add_argument(
        "action",
        nargs="?",
        choices=("show", "issue", "rotate", "revoke", "init"),
        default="show",
        help="show: list certificates and their expiry (default); issue: create a certificate for a"
        " user; rotate: renew certificates; revoke: stop trusting certificates; init: create the"
        " fleet's authority",
    )
    command.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="issue, revoke: user names; rotate: host names (default: the controller and you)",
    )
    command.add_argument(
        "-o",
        "--output",
        default="",
        metavar="DIR",
        help="issue: folder to create, for the user's machine",
    )
    command.add_argument(
        "--authority",
        action="store_true",
        help="rotate: replace the authority; run this command again when all hosts are deployed",
    )
    command.add_argument(
        "--controller",
        action="store_true",
        help="revoke: the controller's certificates; the controller gets a new one",
    )
    command.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="revoke: the reason, shown to those who are refused",
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="init: replace the authority at once; every host must then be deployed again",
    )
    trust_option(command)


def local_machine_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the commands that start an agent on this machine."""
    command.add_argument(
        "--host-name",
        default="",
        metavar="NAME",
        help="name of this machine in results (default: its own host name)",
    )
    command.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="label of this machine; may be repeated",
    )
    command.add_argument(
        "--metrics-port",
        type=int,
        default=0,
        metavar="PORT",
        help="serve Prometheus metrics on 127.0.0.1 at this port (default: none)",
    )
