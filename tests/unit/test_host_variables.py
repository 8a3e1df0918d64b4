"""A job takes away, replaces or gets the variables that its hosts give to every server."""

from __future__ import annotations

from fleet_controller.core.inventory import FleetHost
from fleet_controller.planning.equivalence import equivalent_variants
from fleet_controller.planning.host_variables import host_variable_findings
from fleet_controller.planning.job_plan import make_plan
from fleet_controller.planning.variants import make_variants
from tests.unit.test_equivalence import loaded

HOSTS = [
    FleetHost("a", env={"NCCL_ALGO": "Ring", "HTTP_PROXY": "http://p"}),
    FleetHost("b", env={"NCCL_ALGO": "Ring"}),
]


def test_null_removes_a_hosts_variable_unless_a_later_level_sets_it() -> None:
    levels = {"default": {}, "ring": {"env": {"NCCL_ALGO": "Ring"}}, "off": {"env": {"X": None}}}
    job = loaded({"nccl": levels}, env={"NCCL_ALGO": None, "X": "1"}).job
    found = {variant.levels["nccl"]: variant.engine for variant in make_variants(job)}
    assert [(dict(engine.env), engine.env_removed) for engine in found.values()] == [
        ({"X": "1"}, ("NCCL_ALGO",)),
        ({"X": "1", "NCCL_ALGO": "Ring"}, ()),
        ({}, ("NCCL_ALGO", "X")),
    ]
    shown = make_plan(job, ["a"]).to_json()["variants"]
    assert shown[2]["env"] == {"NCCL_ALGO": None, "X": None}


def test_a_variant_that_only_removes_a_variable_is_another_server() -> None:
    job = loaded({"nccl": {"default": {}, "off": {"env": {"NCCL_ALGO": None}}}}).job
    variants = make_variants(job)
    assert equivalent_variants(job, variants) == ()
    assert not [found for found in make_plan(job, ["a"]).findings if found.code == "equal_variants"]


def test_plan_and_lint_name_the_variables_that_come_from_hosts() -> None:
    job = loaded({"nccl": {"default": {}, "off": {"env": {"NCCL_ALGO": None}}}}).job
    messages = [found.message for found in host_variable_findings(job, make_variants(job), HOSTS)]
    assert messages == [
        "every variant gets HTTP_PROXY=http://p from host a",
        "nccl=default gets NCCL_ALGO=Ring from host a, b",
    ]
