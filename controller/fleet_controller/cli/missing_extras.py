"""Reports modules that are missing because an extra of benchfleet is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from fleet_protos.errors import ConfigError

_AGENT_MODULES = ("ray", "pyarrow", "uvloop")


def missing_extra_error(module: str, extra: str) -> ConfigError:
    """Return the error for a module that is not installed and belongs to `extra`."""
    return ConfigError(
        f"the Python module {module} is not installed",
        f"install benchfleet[{extra}]; `fleetctl run` needs benchfleet[agent,controller]",
    )


def require_agent_extra() -> None:
    """Raise ConfigError if a module of the agent's extra is missing.

    This is called before a server is launched, because without the extra no load could be sent to
    it.
    """
    missing = next((module for module in _AGENT_MODULES if find_spec(module) is None), None)
    if missing:
        raise missing_extra_error(missing, "agent")
