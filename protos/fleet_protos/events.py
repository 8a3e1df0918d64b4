"""Exports the events of a trial as values. `v1/trial.proto` documents and generates them."""

from __future__ import annotations

from fleet_protos.v1.trial_values import (
    AgentRestarted,
    Body,
    CancelRequested,
    ConfigurationProved,
    Event,
    EvidenceCollected,
    LoadFailed,
    RunFinished,
    ServerFailed,
    ServerLaunched,
    ServerLaunching,
    ServerProgressed,
    ServerReady,
    ServerStopped,
    TrialAccepted,
    TrialOver,
    WarmedUp,
)

__all__ = [
    "AgentRestarted", "Body", "CancelRequested", "ConfigurationProved", "Event",
    "EvidenceCollected", "LoadFailed", "RunFinished", "ServerFailed", "ServerLaunched",
    "ServerLaunching", "ServerProgressed", "ServerReady", "ServerStopped", "TrialAccepted",
    "TrialOver", "WarmedUp",
]  # fmt: skip
