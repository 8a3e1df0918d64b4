"""Owns the command line: every command, its options and its help. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

AddOptions = Callable[[argparse.ArgumentParser], None]


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; the namespace holds `command` and the `module` that runs it."""
    top = argparse.ArgumentParser(
        prog="fleetctl",
        description="Benchmark SGLang servers on one machine or a fleet, and get verdicts that hold.",
        epilog="Exit codes: 0 done, 1 the answer is bad, 2 something must be edited, 3 not reachable, 4 a bug. "
        "State: $BENCHFLEET_STATE or ~/.local/state/benchfleet.",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module, text, add in COMMANDS:
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.set_defaults(module=module)
        add(command)
        command.add_argument(
            "--state", default="", metavar="DIR", help="state folder (default: $BENCHFLEET_STATE)"
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of a bug")
    return top


def percentage(text: str) -> float:
    """`95%`, `95 %` or `0.95` as a share. Raises ArgumentTypeError, which argparse prints."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a percentage: write for example 95%"
        ) from None
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not between 0% and 100%: write for example 95%"
        )
    return value


def _json_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def _controller_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--controller",
        default="",
        metavar="ADDRESS",
        help="host:port or unix:/path (default: $FLEET_CONTROLLER, else the state folder's)",
    )
    _trust_option(command)


def _trust_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        default="",
        metavar="DIR",
        help="certificates (default: $BENCHFLEET_TRUST, else the state's)",
    )


def _fleet_option(command: argparse.ArgumentParser) -> None:
    """`fleet`: None = not said; `cli.fleet_file` turns it into an Inventory."""
    command.add_argument(
        "--fleet",
        default=None,
        metavar="FILE",
        help="fleet file (default: $BENCHFLEET_FLEET, else ./fleet.yaml)",
    )


def _positional(name: str, text: str, *, nargs: str | None = None) -> AddOptions:
    def add(command: argparse.ArgumentParser) -> None:
        command.add_argument(name, metavar=name.upper(), nargs=nargs, help=text)

    return add


def _flag_option(option: str, text: str) -> AddOptions:
    def add(command: argparse.ArgumentParser) -> None:
        command.add_argument(option, action="store_true", help=text)

    return add


def _all_options(*parts: AddOptions) -> AddOptions:
    def add(command: argparse.ArgumentParser) -> None:
        for part in parts:
            part(command)

    return add


_JOB_FILE = _positional("file", "job file, - for standard input")
_ANY_FILE = _positional("file", "job or fleet file, or a pasted launch, - for standard input")
_PRUNE = _flag_option("--prune", "leave out variants whose server runs like another's")
_ONLY_CONNECTED = _flag_option(
    "--only-connected",
    "leave out hosts that do not answer now, instead of letting their trials wait",
)
_JOB = _positional("job", "job id or the start of one")
_TRIAL = _positional("trial", "trial id")


def _attempt_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--attempt", type=int, default=0, metavar="N", help="which attempt (default: the newest)"
    )


def _diagnose_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="log, nvidia-smi or benchmark output; - for standard input; several: the hosts of one job",
    )


def _init_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", default=".", help="where to write (default: here)")
    command.add_argument("--force", action="store_true", help="overwrite files that exist")
    text = "make the job of a pasted launch: a shell script, compose file, manifest, Dockerfile, systemd unit; - for standard input"
    command.add_argument("--from-command", default=None, metavar="FILE", help=text)
    text = "make the job of a sweep over speculation: entries of batch size, steps, topk, draft tokens, as '1,0,0,0 1,3,1,4'"
    command.add_argument("--spec-sweep", default=None, metavar="LIST", help=text)
    command.add_argument(
        "-o",
        "--output",
        default="",
        metavar="JOB",
        help="with either of these: write the job there",
    )
    _json_option(command)


def _schema_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("kind", choices=("job", "fleet"), help="which file the schema is of")


def _hosts_options(command: argparse.ArgumentParser) -> None:
    text = (
        "ls: list them (default); show: all that is known of one; check: look for what stands in the way of trials; "
        "drain: no new trials, what runs goes on to its end; undrain: trials again, also after failures; "
        "revoke: trust its certificate no more"
    )
    command.add_argument(
        "action",
        nargs="?",
        choices=("ls", "show", "check", "drain", "undrain", "revoke"),
        default="ls",
        help=text,
    )
    command.add_argument("hosts", nargs="*", metavar="HOST", help="which (check: all by default)")
    command.add_argument(
        "--reason", default="", metavar="TEXT", help="drain, revoke: why, for whoever waits"
    )


def _undeploy_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "hosts", nargs="*", metavar="HOST", help="which (default: all of the fleet file)"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and do nothing"
    )
    command.add_argument(
        "--at-once",
        type=int,
        default=0,
        metavar="N",
        help="hosts at a time (default: the fleet file's, else 16)",
    )
    command.add_argument(
        "--force", action="store_true", help="also where trials run, which ends them"
    )
    _fleet_option(command)
    _trust_option(command)


def _deploy_options(command: argparse.ArgumentParser) -> None:
    _undeploy_options(command)
    command.add_argument(
        "--wheels",
        default="",
        metavar="DIR",
        help="take the agent's wheels from this folder, not from a registry",
    )


def _trust_command_options(command: argparse.ArgumentParser) -> None:
    text = "show: who has a certificate, until when; issue: one for a user; rotate: renew; revoke: trust no more; init: make the authority"
    command.add_argument(
        "action",
        nargs="?",
        choices=("show", "issue", "rotate", "revoke", "init"),
        default="show",
        help=text,
    )
    command.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="issue, revoke: users; rotate: hosts (default: the controller and you)",
    )
    command.add_argument(
        "-o",
        "--output",
        default="",
        metavar="DIR",
        help="issue: the folder to write, for the user's machine",
    )
    command.add_argument(
        "--authority",
        action="store_true",
        help="rotate: replace the authority; again when all hosts are deployed",
    )
    command.add_argument(
        "--controller",
        action="store_true",
        help="revoke: the controller's certificates; it gets a new one",
    )
    command.add_argument(
        "--reason", default="", metavar="TEXT", help="revoke: why, for those who are refused"
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="init: replace the authority at once; every host must be deployed again",
    )
    _trust_option(command)


def _verdict_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--baseline",
        default="",
        metavar="VARIANT",
        help="compare against this variant (default: the job's)",
    )
    command.add_argument(
        "--confidence",
        type=percentage,
        default=None,
        metavar="P",
        help="of every interval (default: the job's or 95%%)",
    )
    command.add_argument(
        "--margin",
        type=percentage,
        default=None,
        metavar="P",
        help="what does not matter (default: the job's or 2%%)",
    )


def _compare_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "a", nargs="?", metavar="A", help="job id: its variants against its baseline"
    )
    command.add_argument(
        "b", nargs="?", metavar="B", help="another job id: each variant of B against the same of A"
    )
    command.add_argument(
        "--csv",
        metavar="FILE",
        help="your own numbers: columns variant,launch,value[,host,workload,metric,block]",
    )
    command.add_argument(
        "--fail-on", choices=("slower",), default=None, help="exit 1 when a verdict is SLOWER"
    )
    _verdict_options(command)


def _report_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format", choices=("csv", "json", "md"), default="md", help="(default: md)"
    )
    command.add_argument(
        "-o", "--output", default="", metavar="FILE", help="write there instead of standard output"
    )
    _verdict_options(command)


def _local_machine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--host-name",
        default="",
        metavar="NAME",
        help="what this machine is called in results (default: its own name)",
    )
    command.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label of this machine; repeat it",
    )
    command.add_argument(
        "--metrics-port",
        type=int,
        default=0,
        metavar="PORT",
        help="Prometheus endpoint on 127.0.0.1 (default: none)",
    )


COMMANDS: Sequence[tuple[str, str, str, AddOptions]] = (
    (
        "init",
        "init",
        "write a commented job.yaml and fleet.yaml, or a job made of a pasted launch",
        _init_options,
    ),
    (
        "lint",
        "lint",
        "tell what is wrong with a job, a fleet file or a pasted launch, before GPU time is spent",
        _all_options(_ANY_FILE, _json_option),
    ),
    (
        "plan",
        "plan",
        "show variants, trials, their order, estimated time and cost; start nothing",
        _all_options(_JOB_FILE, _PRUNE, _fleet_option, _json_option),
    ),
    (
        "run",
        "run",
        "run a job on this machine, to the verdict",
        _all_options(_JOB_FILE, _PRUNE, _local_machine_options, _json_option),
    ),
    (
        "up",
        "run",
        "run a controller in the foreground: for the hosts of the fleet file, or with an agent on this machine",
        _all_options(
            _fleet_option,
            _flag_option("--local", "without a fleet file: an agent on this machine"),
            _local_machine_options,
            _trust_option,
        ),
    ),
    (
        "submit",
        "watch",
        "hand a job to the controller",
        _all_options(
            _JOB_FILE,
            _PRUNE,
            _flag_option("--watch", "follow it to the verdict"),
            _ONLY_CONNECTED,
            _fleet_option,
            _controller_option,
            _json_option,
        ),
    ),
    ("ls", "show", "list jobs", _all_options(_controller_option, _json_option)),
    (
        "show",
        "show",
        "show a job and its trials",
        _all_options(_JOB, _controller_option, _json_option),
    ),
    (
        "watch",
        "watch",
        "follow a job until it is over",
        _all_options(_JOB, _controller_option, _json_option),
    ),
    (
        "cancel",
        "cancel",
        "cancel a job",
        _all_options(_JOB, _fleet_option, _controller_option, _json_option),
    ),
    (
        "logs",
        "logs",
        "print the server's log of a trial",
        _all_options(_TRIAL, _attempt_option, _controller_option),
    ),
    (
        "resume",
        "run",
        "go on with a job of this machine that was interrupted",
        _all_options(_JOB, _fleet_option, _local_machine_options, _json_option),
    ),
    (
        "hosts",
        "hosts",
        "list, show, check, drain or undrain hosts",
        _all_options(_hosts_options, _controller_option, _json_option),
    ),
    (
        "deploy",
        "deploy",
        "bring agents to the hosts of the fleet file, or up to date",
        _all_options(_deploy_options, _json_option),
    ),
    (
        "undeploy",
        "deploy",
        "take agents away from hosts, with all that deploy made there",
        _all_options(_undeploy_options, _json_option),
    ),
    (
        "trust",
        "trust",
        "certificates of the fleet: show, issue, rotate, revoke",
        _all_options(_trust_command_options, _json_option),
    ),
    (
        "compare",
        "compare",
        "verdicts against a baseline, against another job, or on your own numbers",
        _all_options(_compare_options, _controller_option, _json_option),
    ),
    (
        "report",
        "report",
        "the verdict table as CSV, JSON or Markdown",
        _all_options(_JOB, _report_options, _controller_option),
    ),
    (
        "repro",
        "logs",
        "print a shell script that starts that exact server by hand",
        _all_options(_TRIAL, _attempt_option, _controller_option),
    ),
    (
        "diagnose",
        "diagnose",
        "tell what a server's log comes to: state, root of a failure, what to do, rates",
        _all_options(_diagnose_options, _json_option),
    ),
    (
        "schema",
        "init",
        "print the JSON Schema of a job or fleet file, for editors",
        _schema_options,
    ),
    ("version", "init", "print the version", _json_option),
)
