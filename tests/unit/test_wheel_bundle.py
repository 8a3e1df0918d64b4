"""Which wheels a deploy sends: the simulator's only to hosts that run simulated servers."""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest

from fleet_controller.deploy.deploy_context import DeployContext
from fleet_controller.deploy.wheel_bundle import Bundle, Bundler, WheelTarget
from fleet_controller.pki.authority import Authority
from fleet_protos.errors import ConfigError

TARGET = WheelTarget((3, 12), "x86_64", 35)


@pytest.fixture
def context(tmp_path: Path) -> DeployContext:
    """A deploy whose pinned wheels are in the cache already: none."""
    pins = (files("fleet_controller.deploy") / "agent-requirements.txt").read_bytes()
    cached = tmp_path / "wheels" / TARGET.tag / hashlib.sha256(pins).hexdigest()[:16]
    cached.mkdir(parents=True)
    return DeployContext(
        Authority(tmp_path / "trust"), Bundler(tmp_path), lambda *_: None, ThreadPoolExecutor(1)
    )


def projects(bundle: Bundle) -> list[str]:
    return [item.name.split("-")[0] for item in bundle.wheels]


def test_the_simulator_is_sent_only_to_hosts_with_simulated_gpus(context: DeployContext) -> None:
    assert projects(context.bundle_for(TARGET, simulated=False)) == ["benchfleet"]
    assert projects(context.bundle_for(TARGET, simulated=True)) == [
        "benchfleet",
        "benchfleet_simulator",
    ]


def test_without_the_simulator_here_a_host_with_simulated_gpus_is_refused_with_the_remedy(
    context: DeployContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fleet_simulator", None)
    assert projects(context.bundle_for(TARGET, simulated=False)) == ["benchfleet"]
    with pytest.raises(ConfigError, match="the simulator is not installed here") as refused:
        context.bundle_for(TARGET, simulated=True)
    assert "benchfleet[simulator]" in refused.value.hint
