"""Decides whether a trial may run on this host, and fills in the host's defaults.

A trial must be valid, and the host's policy must allow it. A refusal is final: the controller
closes the trial as a configuration error and does not retry it.
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

_INVALID_TRIAL_HINT = "correct the job; if no controller sent this trial, check which client did"


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules for trials on one host. `private` lists the agent's own folders, which no job may
    use.
    """

    host: str
    policy: Policy = field(default_factory=Policy)
    defaults: ServerDefaults = field(default_factory=ServerDefaults)
    private: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, host: str, config: AgentConfig, state: Path) -> Admission:
        """Return the rules that the agent's configuration sets. `state` is its state folder."""
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
        """Return the trial with the host's defaults filled in. Log why a trial is refused, and
        raise ConfigError. This reads symbolic links on disk: call it in a thread.
        """
        if faults_found := find_spec_faults(spec):
            self._log_refusal(spec, faults_found)
            faults = "; ".join(faults_found)
            raise ConfigError(
                f"host {self.host} rejects an invalid trial: {faults}", _INVALID_TRIAL_HINT
            )
        engine = with_defaults(spec.engine, self.defaults)
        given = tuple(name for name in engine.env if name not in spec.engine.env)
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
        missing = ", ".join(
            f"{name}: [{', '.join(dict.fromkeys(entries))}]" for name, entries in lists.items()
        )
        keys = ", ".join(never)
        hints = [f"remove {keys} from the job"] if never else []
        if missing:
            allow = f"allow: {{{missing}}}"
            hints.append(
                "remove what is not allowed from the job, or ask the owner of the fleet to add "
                f"`{allow}` to host {self.host} in fleet.yaml and to run `fleetctl deploy`"
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
