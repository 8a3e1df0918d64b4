"""Defines the command line of `fleetctl`: every command with its options and its help.

It imports only what loads fast, so that `fleetctl --help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fleet_controller.cli.command_options import (
    ANY_FILE,
    JOB,
    JOB_FILE,
    ONLY_CONNECTED,
    PRUNE,
    TRIAL,
    AddOptions,
    all_options,
    attempt_option,
    controller_option,
    deploy_options,
    diagnose_options,
    flag_option,
    fleet_option,
    hosts_options,
    init_options,
    json_option,
    local_machine_options,
    schema_options,
    simulate_options,
    trust_command_options,
    trust_option,
    undeploy_options,
)
from fleet_controller.cli.verdict_options import compare_options, report_options


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line. Its namespace holds the name of the command in
    `command`.
    """
    top = argparse.ArgumentParser(
        prog="fleetctl",
        description="Benchmark SGLang servers on one machine or a fleet, and get verdicts that"
        " hold.",
        epilog="Exit codes: 0 done, 1 failed or regressed, 2 usage or configuration error,"
        " 3 not reachable, 4 a bug."
        " State folder: $BENCHFLEET_STATE, else ~/.local/state/benchfleet.",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text, add in COMMANDS:
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        add(command)
        command.add_argument(
            "--state",
            default="",
            metavar="DIR",
            help="state folder (default: $BENCHFLEET_STATE, else ~/.local/state/benchfleet)",
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of a bug")
    return top


def parse_command_line(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments of one command.

    `server_arguments` of the result holds the arguments that `simulate` passes on to its server.
    Every other command refuses unknown arguments.
    """
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "simulate":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.server_arguments = rest
    return arguments


# (name of the command and of its module in cli/commands, help, options)
COMMANDS: Sequence[tuple[str, str, AddOptions]] = (
    (
        "init",
        "write a commented job.yaml, or make one from an existing launch command; --fleet: write"
        " fleet.yaml too",
        init_options,
    ),
    (
        "lint",
        "check a job file, a fleet file or a launch command for mistakes before GPU time is spent",
        all_options(ANY_FILE, json_option),
    ),
    (
        "plan",
        "show variants, trials and their order, the estimated time and cost; start nothing",
        all_options(
            JOB_FILE,
            PRUNE,
            fleet_option,
            flag_option(
                "--local", "ignore any fleet file and plan for this machine, as `run` does"
            ),
            json_option,
        ),
    ),
    (
        "run",
        "run a job on this machine and print its verdicts",
        all_options(JOB_FILE, PRUNE, local_machine_options, json_option),
    ),
    (
        "up",
        "run a controller in the foreground, for the hosts of the fleet file or with an agent on"
        " this machine",
        all_options(
            fleet_option,
            flag_option("--local", "ignore any fleet file and start an agent on this machine"),
            local_machine_options,
            trust_option,
        ),
    ),
    (
        "submit",
        "submit a job to the controller",
        all_options(
            JOB_FILE,
            PRUNE,
            flag_option("--watch", "follow the job until it is over, then print its verdicts"),
            ONLY_CONNECTED,
            fleet_option,
            controller_option,
            json_option,
        ),
    ),
    ("ls", "list jobs", all_options(controller_option, json_option)),
    ("show", "show a job and its trials", all_options(JOB, controller_option, json_option)),
    (
        "watch",
        "follow a job until it is over, then print its verdicts",
        all_options(JOB, controller_option, json_option),
    ),
    (
        "cancel",
        "cancel a job",
        all_options(JOB, fleet_option, controller_option, json_option),
    ),
    (
        "logs",
        "print the server log of a trial",
        all_options(TRIAL, attempt_option, controller_option),
    ),
    (
        "resume",
        "continue an interrupted job of this machine",
        all_options(JOB, fleet_option, local_machine_options, json_option),
    ),
    (
        "hosts",
        "list, show, check, drain or undrain hosts, or revoke their certificates",
        all_options(hosts_options, controller_option, json_option),
    ),
    (
        "deploy",
        "install or update the agents on the hosts of the fleet file",
        all_options(deploy_options, json_option),
    ),
    (
        "undeploy",
        "remove the agents from hosts, with everything that deploy created there",
        all_options(undeploy_options, json_option),
    ),
    (
        "trust",
        "show, issue, rotate or revoke the certificates of the fleet",
        all_options(trust_command_options, json_option),
    ),
    (
        "compare",
        "print verdicts: against the baseline, between two jobs, or on your own numbers",
        all_options(compare_options, controller_option, json_option),
    ),
    (
        "report",
        "write the verdict table as CSV, JSON or Markdown",
        all_options(JOB, report_options, controller_option),
    ),
    (
        "repro",
        "print a shell script that starts the exact server of a trial by hand",
        all_options(TRIAL, attempt_option, controller_option),
    ),
    (
        "diagnose",
        "read a server log: its state, the root cause of a failure and what to do, its rates",
        all_options(diagnose_options, json_option),
    ),
    (
        "schema",
        "print the JSON Schema of a job or fleet file, for editors",
        schema_options,
    ),
    (
        "simulate",
        "run a simulated SGLang server in the foreground, for any client",
        simulate_options,
    ),
    ("version", "print the version", json_option),
)
