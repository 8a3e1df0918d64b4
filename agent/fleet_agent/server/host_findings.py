"""Defines the findings of preflight and host check, their codes, and what each code means for a
trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_protos.errors import ErrorKind
from fleet_protos.events import ServerFailed
from fleet_protos.trial_types import Gate, GateEffect

ERROR, WARNING, INFO = "error", "warning", "info"


@dataclass(frozen=True, slots=True)
class FindingCode:
    """The severity of a finding. If the finding is an error, `kind` and `failure_class` say how the
    trial fails.
    """

    severity: str
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""


CODES: Mapping[str, FindingCode] = {
    "preflight_disk": FindingCode(ERROR, ErrorKind.CONFLICT, "preflight_disk"),
    "disk_low": FindingCode(WARNING),
    "preflight_model_missing": FindingCode(ERROR, ErrorKind.CONFIG, "preflight_model_missing"),
    "preflight_model_incomplete": FindingCode(
        ERROR, ErrorKind.CONFIG, "preflight_model_incomplete"
    ),
    "preflight_file_missing": FindingCode(ERROR, ErrorKind.CONFIG, "preflight_file_missing"),
    "preflight_python_missing": FindingCode(ERROR, ErrorKind.CONFIG, "preflight_python_missing"),
    "no_gpu": FindingCode(ERROR, ErrorKind.DEPLOY_FAILED, "no_gpu"),
    "driver_mismatch": FindingCode(ERROR, ErrorKind.DEPLOY_FAILED, "driver_mismatch"),
    "gpu_lost": FindingCode(ERROR, ErrorKind.DEPLOY_FAILED, "gpu_lost"),
    "fabric_manager_down": FindingCode(ERROR, ErrorKind.DEPLOY_FAILED, "fabric_manager_down"),
    "gpu_busy_leftover": FindingCode(ERROR, ErrorKind.CONFLICT, "gpu_busy_leftover"),
    "gpu_shared": FindingCode(WARNING),
    "gpus_unequal": FindingCode(WARNING),
    "mig_on": FindingCode(WARNING),
    "port_in_use": FindingCode(ERROR, ErrorKind.CONFLICT, "port_in_use"),
    "dist_port_in_use": FindingCode(ERROR, ErrorKind.CONFLICT, "dist_port_in_use"),
    "shm_small": FindingCode(WARNING),
    "trial_running": FindingCode(INFO),
    "takes_no_trials": FindingCode(ERROR, ErrorKind.CONFLICT, "takes_no_trials"),
    "gpu_aside": FindingCode(WARNING),
    "no_gpu_left": FindingCode(ERROR, ErrorKind.CONFLICT, "no_gpu_left"),
    "host_busy": FindingCode(WARNING),
    "limit_files": FindingCode(WARNING),
    "limit_processes": FindingCode(WARNING),
    "limit_memlock": FindingCode(WARNING),
    "ports_few": FindingCode(WARNING),
    "no_port": FindingCode(ERROR, ErrorKind.CONFLICT, "no_port"),
    "server_python_missing": FindingCode(WARNING),
    "server_without_key": FindingCode(WARNING),
    "no_runtime": FindingCode(WARNING),
    "image_missing": FindingCode(WARNING),
    "clock_jumped": FindingCode(INFO),
    "clock_unsynchronised": FindingCode(INFO),
    "no_compiler": FindingCode(INFO),
}


# Warnings that concern the numbers themselves, so every run is flagged with them. The others are
# for the owner of the host.
FLAGGED_CODES = ("gpu_shared", "gpus_unequal", "mig_on")


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the preflight or the host check."""

    code: str
    message: str
    hint: str = ""

    @property
    def severity(self) -> str:
        """The severity of the finding's code: `error`, `warning` or `info`."""
        return CODES[self.code].severity

    def to_json(self) -> dict[str, str]:
        """Return the object that `fleet-agent check --json` prints."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "hint": self.hint,
        }

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.message}" + (
            f"\n  {self.hint}" if self.hint else ""
        )


def launch_refusal(findings: Sequence[Finding]) -> ServerFailed | None:
    """Return the event that fails a trial before its launch. Return None if no finding is an error.

    If the user must correct an error in the job, that error comes first in the message.
    """
    errors = [finding for finding in findings if finding.severity == ERROR]
    if not errors:
        return None
    first = min(errors, key=lambda finding: CODES[finding.code].kind is not ErrorKind.CONFIG)
    code = CODES[first.code]
    message = "; ".join(
        error.message for error in (first, *(error for error in errors if error is not first))
    )
    return ServerFailed(
        code.kind,
        code.failure_class,
        f"preflight: {message}",
        cause_line=first.message,
        hint=first.hint,
    )


def launch_flags(findings: Sequence[Finding]) -> tuple[Gate, ...]:
    """Return one flag for each finding that makes the results of the launch less reliable."""
    return tuple(
        Gate(finding.code, GateEffect.FLAG, finding.message)
        for finding in findings
        if finding.code in FLAGGED_CODES
    )
