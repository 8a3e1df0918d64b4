"""Decides whether a trial may run on this host: it must be valid and allowed, and gets the host's
defaults.

A refusal is final: the controller closes the trial as a configuration error and does not retry it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet_agent.app.config import AgentConfig
from fleet_agent.core.admission.host_policy import (
    Policy,
    ServerDefaults,
    allow_defaults,
    with_defaults,
)
from fleet_agent.core.admission.policy_check import PathLookup, PolicyViolation, policy_violations
from fleet_agent.core.admission.spec_validation import find_spec_faults, shorten_untrusted
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import TrialSpec

log = logging.getLogger(__name__)

_INVALID_TRIAL_HINT = "correct the job; if a controller did not send it, check which client did"


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of one host. `private` lists folders of the agent that no job may name."""

    host: str
    policy: Policy = field(default_factory=Policy)
    defaults: ServerDefaults = field(default_factory=ServerDefaults)
    private: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, host: str, config: AgentConfig, state: Path) -> Admission:
        """Return the rules of the agent's configuration."""
        named = [state, *((Path(config.file).parent,) if config.file else ())]
        named += (
            [
                path.parent
                for path in (config.tls.authorities, config.tls.certificate, config.tls.key)
            ]
            if config.tls
            else []
        )
        private = tuple(dict.fromkeys(os.path.realpath(path) for path in named))
        return cls(host, allow_defaults(config.policy, config.server), config.server, private)

    def admit(self, spec: TrialSpec) -> TrialSpec:
        """Return the trial as it will run here. A refusal is logged and raises ConfigError. Follows
        symbolic links on disk: call it in a thread.
        """
        if faults_found := find_spec_faults(spec):
            self._log_refusal(spec, faults_found)
            raise ConfigError(
                f"host {self.host} rejects an invalid trial: {'; '.join(faults_found)}",
                _INVALID_TRIAL_HINT,
            )
        engine = with_defaults(spec.engine, self.defaults)
        given = tuple(name for name in self.defaults.env if name not in spec.engine.env)
        refused = policy_violations(engine, given, self.policy, self._host_lookup())
        if refused:
            reasons = "; ".join(map(str, refused))
            self._log_refusal(spec, map(str, refused))
            raise ConfigError(
                f"host {self.host} does not allow trial {spec.trial_id}: {reasons}",
                self._hint(refused),
            )
        return replace(spec, engine=engine)

    def _host_lookup(self) -> PathLookup:
        return PathLookup(
            str(Path.home()),
            os.path.realpath,
            lambda program: shutil.which(program) or "",
            self.private,
        )

    def _hint(self, refused: Iterable[PolicyViolation]) -> str:
        lists: dict[str, list[str]] = {}
        never = []
        for refusal in refused:
            if refusal.allow:
                lists.setdefault(refusal.allow, []).append(refusal.entry)
            else:
                never.append(refusal.key)
        allow = ", ".join(
            f"{name}: [{', '.join(dict.fromkeys(entries))}]" for name, entries in lists.items()
        )
        hints = [f"remove {', '.join(never)} from the job"] if never else []
        if allow:
            hints.append(
                "remove it from the job, or have the owner of the fleet add to "
                f"{self.host} in fleet.yaml: allow: {{{allow}}}, and run `fleetctl deploy`"
            )
        return "; ".join(hints)

    def _log_refusal(self, spec: TrialSpec, reasons: Iterable[str]) -> None:
        for reason in reasons:
            log.warning(
                "refused trial %s of job %s: %s",
                shorten_untrusted(spec.trial_id),
                shorten_untrusted(spec.job_id),
                shorten_untrusted(reason, 500),
            )
