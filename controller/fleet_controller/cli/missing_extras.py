"""Owns what is said of an installation that lacks one of benchfleet's extras. Imports nothing of
theirs.
"""

from __future__ import annotations

from importlib.util import find_spec

from fleet_protos.errors import ConfigError

_AGENT_MODULES = ("ray", "pyarrow", "uvloop")


def missing_extra_error(module: str, extra: str) -> ConfigError:
    """The error for a module that is not installed."""
    hint = f"install benchfleet[{extra}]; `fleetctl run` needs benchfleet[agent,controller]"
    return ConfigError(f"this installation lacks {module}", hint)


def require_agent_extra() -> None:
    """Before a server is launched that nothing could load. Raises ConfigError when a module of the
    agent's extra is missing.
    """
    missing = next((module for module in _AGENT_MODULES if find_spec(module) is None), None)
    if missing:
        raise missing_extra_error(missing, "agent")
