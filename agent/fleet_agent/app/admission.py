"""Owns the admission of trials: sound, allowed on this host, with the host's defaults. Looks at
links and programs; starts nothing.

Refused is refused for good: the controller closes such a trial as a mistake of configuration, and
does not try it again.
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

_INVALID_TRIAL_HINT = (
    "this is no trial that a controller of benchfleet sends: correct the job, or look who sent it"
)


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of one host. `private`: folders of the agent that no job may name."""

    host: str
    policy: Policy = field(default_factory=Policy)
    defaults: ServerDefaults = field(default_factory=ServerDefaults)
    private: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, host: str, config: AgentConfig, state: Path) -> Admission:
        """As the agent is configured."""
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
        """The trial as it is run here. Raises ConfigError, told in the log too. Follows links: call
        it in a thread.
        """
        if faults_found := find_spec_faults(spec):
            self._log_refusal(spec, faults_found)
            raise ConfigError(
                f"host {self.host} takes no such trial: {'; '.join(faults_found)}",
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
            owner = f"have the owner of the fleet write in fleet.yaml, for {self.host}: allow: {{{allow}}}, then run `fleetctl deploy`"
            hints.append(f"remove it from the job, or {owner}")
        return "; ".join(hints)

    def _log_refusal(self, spec: TrialSpec, reasons: Iterable[str]) -> None:
        for reason in reasons:
            log.warning(
                "trial %s of job %s refused: %s",
                shorten_untrusted(spec.trial_id),
                shorten_untrusted(spec.job_id),
                shorten_untrusted(reason, 500),
            )
