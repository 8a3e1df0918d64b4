"""Owns the codes of what preflight finds, with severity, error kind and failure class; looks at nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_protos.errors import ErrorKind
from fleet_protos.events import ServerFailed
from fleet_protos.trial_types import Gate, GateEffect

ERROR, WARNING, INFO = "error", "warning", "info"


@dataclass(frozen=True, slots=True)
class Code:
    """What a finding of this code means for the trial; `kind` says what to do next, as everywhere."""

    severity: str
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""


CODES: Mapping[str, Code] = {
    "preflight_disk": Code(ERROR, ErrorKind.CONFLICT, "preflight_disk"),
    "disk_low": Code(WARNING),
    "preflight_model_missing": Code(ERROR, ErrorKind.CONFIG, "preflight_model_missing"),
    "preflight_model_incomplete": Code(ERROR, ErrorKind.CONFIG, "preflight_model_incomplete"),
    "preflight_file_missing": Code(ERROR, ErrorKind.CONFIG, "preflight_file_missing"),
    "preflight_python_missing": Code(ERROR, ErrorKind.CONFIG, "preflight_python_missing"),
    "no_gpu": Code(ERROR, ErrorKind.DEPLOY_FAILED, "no_gpu"),
    "driver_mismatch": Code(ERROR, ErrorKind.DEPLOY_FAILED, "driver_mismatch"),
    "gpu_lost": Code(ERROR, ErrorKind.DEPLOY_FAILED, "gpu_lost"),
    "fabric_manager_down": Code(ERROR, ErrorKind.DEPLOY_FAILED, "fabric_manager_down"),
    "gpu_busy_leftover": Code(ERROR, ErrorKind.CONFLICT, "gpu_busy_leftover"),
    "gpu_shared": Code(WARNING),
    "gpus_unequal": Code(WARNING),
    "mig_on": Code(WARNING),
    "port_in_use": Code(ERROR, ErrorKind.CONFLICT, "port_in_use"),
    "dist_port_in_use": Code(ERROR, ErrorKind.CONFLICT, "dist_port_in_use"),
    "shm_small": Code(WARNING),
    "trial_running": Code(INFO),
    "takes_no_trials": Code(ERROR, ErrorKind.CONFLICT, "takes_no_trials"),
    "gpu_aside": Code(WARNING),
    "no_gpu_left": Code(ERROR, ErrorKind.CONFLICT, "no_gpu_left"),
    "host_busy": Code(WARNING),
    "limit_files": Code(WARNING),
    "limit_processes": Code(WARNING),
    "limit_memlock": Code(WARNING),
    "ports_few": Code(WARNING),
    "no_port": Code(ERROR, ErrorKind.CONFLICT, "no_port"),
    "server_python_missing": Code(WARNING),
    "no_runtime": Code(WARNING),
    "image_missing": Code(WARNING),
    "clock_jumped": Code(INFO),
    "clock_unsynchronised": Code(INFO),
    "no_compiler": Code(INFO),
}


# Warnings that concern the numbers themselves: they stand beside each of them. The others are for who looks after the host.
BLURRING = ("gpu_shared", "gpus_unequal", "mig_on")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that preflight tells."""

    code: str
    message: str
    hint: str = ""

    @property
    def severity(self) -> str:
        """error, warning or info, by its code."""
        return CODES[self.code].severity

    def to_json(self) -> dict[str, str]:
        """As `fleet-agent check --json` prints it."""
        return {"code": self.code, "severity": self.severity, "message": self.message, "hint": self.hint}

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.message}" + (f"\n  {self.hint}" if self.hint else "")


def refusal(findings: Sequence[Finding]) -> ServerFailed | None:
    """The event that ends the trial before anything was started; None when no finding is an error. What the user must edit comes first."""
    errors = [finding for finding in findings if finding.severity == ERROR]
    if not errors:
        return None
    first = min(errors, key=lambda finding: CODES[finding.code].kind is not ErrorKind.CONFIG)
    code = CODES[first.code]
    message = "; ".join(error.message for error in (first, *(error for error in errors if error is not first)))
    return ServerFailed(code.kind, code.failure_class, f"preflight: {message}", cause_line=first.message, hint=first.hint)


def flags(findings: Sequence[Finding]) -> tuple[Gate, ...]:
    """The gates of a launch by what was found before it: one flag for each thing that blurs its numbers."""
    return tuple(Gate(finding.code, GateEffect.FLAG, finding.message) for finding in findings if finding.code in BLURRING)
