"""What a sound job file means, and how whole files are refused."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from fleet_controller.core.job import HostChoice, LoadChoice
from fleet_controller.fleet_file.fleet_template import fleet_template
from fleet_controller.job_file.job_loader import LoadedJob, load_job, load_job_file
from fleet_controller.job_file.job_template import job_template
from fleet_controller.planning.job_plan import make_plan
from fleet_controller.yaml.findings import INFO, Finding, JobRejected
from fleet_protos.errors import ConfigError, ExitCode
from fleet_protos.trial_types import EngineKind, Slo

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = """\
apiVersion: benchfleet/v1
kind: Job
name: small
model: {path: m}
engine: {kind: simulated}
workloads:
  single: {concurrency: 1, output_tokens: 5}
"""


def load(text: str) -> LoadedJob:
    return load_job(text, "job.yaml")


def codes(text: str | bytes) -> list[str]:
    with pytest.raises(JobRejected) as rejected:
        load_job(text, "job.yaml")
    return [finding.code for finding in rejected.value.findings]


def test_the_demo_has_no_findings() -> None:
    assert load_job_file(EXAMPLES / "demo.yaml").findings == ()


def test_the_example_is_told_what_its_nccl_settings_are_worth() -> None:
    found = [
        (finding.code, finding.key.split(".")[-1])
        for finding in load_job_file(EXAMPLES / "kimi-eagle3-nccl.yaml").findings
    ]
    assert found == [("nccl_bypassed", "tuned"), ("nccl_default", "NCCL_NTHREADS")]


def test_the_demo_is_the_real_job_on_the_simulated_engine() -> None:
    real, demo = (
        load_job_file(EXAMPLES / name).job for name in ("kimi-eagle3-nccl.yaml", "demo.yaml")
    )
    assert (demo.factors, demo.baseline, demo.engine.args, demo.gpus) == (
        real.factors,
        real.baseline,
        real.engine.args,
        8,
    )
    assert (real.engine.kind, demo.engine.kind) == (EngineKind.SGLANG, EngineKind.SIMULATED)
    assert demo.engine.simulation.time_scale == 20


def test_the_job_template_lints_without_errors_and_warnings() -> None:
    assert [
        finding.code for finding in load(job_template()).findings if finding.severity != INFO
    ] == []


def test_the_fleet_template_taken_for_a_job_is_told_as_such() -> None:
    assert "bad_choice" in codes(fleet_template())


def test_defaults_are_those_of_the_guide() -> None:
    job = load(SMALL).job
    assert (job.launches, job.margin, job.gpus, job.hosts.every_host) == (3, 0.02, None, True)
    assert (
        job.measure.runs_min,
        job.measure.runs_max,
        job.measure.warmup_requests,
        job.measure.seed,
    ) == (5, 20, 0, 1)
    assert (job.measure.precision, job.measure.confidence) == (0.02, 0.95)
    assert (job.workloads[0].prompts, job.workloads[0].api, job.workloads[0].request_timeout_s) == (
        "builtin:chat",
        "chat",
        600.0,
    )
    assert (job.engine.ready_timeout_s, job.engine.stop_timeout_s) == (1800.0, 30.0)


def test_the_most_runs_are_never_fewer_than_the_least() -> None:
    assert load(SMALL + "measure: {runs: {min: 30}}\n").job.measure.runs_max == 30


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 1), (2, 4), (3, 6), (8, 16)])
def test_default_requests_are_one_alone_and_two_waves_else(concurrency: int, requests: int) -> None:
    workload = load(SMALL.replace("concurrency: 1", f"concurrency: {concurrency}")).job.workloads[0]
    assert (workload.concurrency, workload.requests) == (concurrency, requests)


def test_a_list_makes_one_workload_each_and_one_value_keeps_the_name() -> None:
    text = SMALL + (
        "  busy: {concurrency: [8, 32], output_tokens: 5}\n"
        "  one: {concurrency: [8], output_tokens: 5}\n"
        "  open: {rate: [4, 0.5], duration: 1m, output_tokens: 5, slo: {ttft_p99: 2s, tpot_p99: 50ms}}\n"
        "  flow: {rate: 4, duration: 90, arrivals: constant, output_tokens: 5}\n"
    )
    cells = {cell.name: cell for cell in load(text).job.workloads}
    assert list(cells) == ["single", "busy@8", "busy@32", "one@8", "open@4/s", "open@0.5/s", "flow"]
    assert (
        cells["open@0.5/s"].rate_per_s,
        cells["open@0.5/s"].duration_s,
        cells["open@0.5/s"].arrivals,
    ) == (0.5, 60.0, "poisson")
    assert (cells["open@4/s"].slo, cells["open@4/s"].concurrency) == (Slo(2.0, 0.05), 0)
    assert (cells["flow"].arrivals, cells["flow"].duration_s) == ("constant", 90.0)


def test_a_variable_is_the_text_that_was_written() -> None:
    env = "{A: 16777216, B: 0x10, C: 1e3, D: true, E: '', F: ~, G: 007, H: 2001-01-01, I: yes, J: 1_000}"
    job = load(SMALL.replace("{kind: simulated}", f"{{kind: simulated, env: {env}}}")).job
    expected = {
        "A": "16777216",
        "B": "0x10",
        "C": "1e3",
        "D": "true",
        "E": "",
        "G": "007",
        "H": "2001-01-01",
        "I": "yes",
        "J": "1_000",
    }
    assert job.engine.env == expected


def test_arguments_get_the_names_and_values_that_the_engine_takes() -> None:
    args = "{tp: 8, --mem-fraction-static: 0.8, trust-remote-code: true, disable_radix_cache: false, enable_tf32_matmul: false, "
    args += "cuda_graph_bs_decode: [1, 2], json_model_override_args: {a: 1}, revision: ~}"
    job = load(SMALL.replace("{kind: simulated}", f"{{kind: simulated, args: {args}}}")).job
    assert job.engine.args == {
        "tp_size": 8,
        "mem_fraction_static": 0.8,
        "trust_remote_code": True,
        "enable_tf32_matmul": False,  # it has a --no- form, so false is kept
        "cuda_graph_bs_decode": [1, 2],
        "json_model_override_args": '{"a": 1}',
    }


def test_anchors_and_merges_work_and_the_own_key_wins() -> None:
    text = SMALL + (
        "x-nccl: &nccl {NCCL_PROTO: LL, NCCL_ALGO: Ring}\n"
        "x-more: &more\n  <<: *nccl\n  NCCL_DEBUG: 1\n"
        "factors:\n  nccl:\n    default:\n    tuned: {env: {<<: *nccl, NCCL_ALGO: Tree}}\n    both: {env: {<<: [*more]}}\n"
        "baseline: {nccl: default}\n"
    )
    levels = load(text).job.factors["nccl"]
    assert levels["default"].env == {}
    assert levels["tuned"].env == {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    assert levels["both"].env == {"NCCL_DEBUG": "1", "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}


def test_without_a_baseline_the_first_levels_are_it() -> None:
    text = SMALL + "factors: {a: {x: {}, y: {env: {A: 1}}}, b: {p: {}, q: {env: {B: 1}}}}\n"
    assert load(text).job.baseline == {"a": "x", "b": "p"}


def test_simulation_knobs_have_their_units() -> None:
    knobs = "{time_scale: 10, launch_noise: 1%, drift_per_hour: -2%, ready_after: 250ms, crash_after: 1m, hang: true, lost_env: [A]}"
    simulation = load(
        SMALL.replace("{kind: simulated}", f"{{kind: simulated, simulation: {knobs}}}")
    ).job.engine.simulation
    assert (simulation.time_scale, simulation.launch_noise, simulation.drift_per_hour) == (
        10.0,
        0.01,
        -0.02,
    )
    assert (
        simulation.ready_after_s,
        simulation.crash_after_s,
        simulation.hang,
        simulation.lost_env,
    ) == (0.25, 60.0, True, ("A",))


def test_an_external_server_gets_one_round_and_no_process() -> None:
    job = load(
        SMALL.replace("{kind: simulated}", "{kind: external, url: 'http://127.0.0.1:30000/'}")
    ).job
    plan = make_plan(job, ["here"])
    assert (job.engine.kind, job.engine.url) == (EngineKind.EXTERNAL, "http://127.0.0.1:30000")
    assert [
        (trial.block, trial.variant.name, trial.variant.engine.gpus) for trial in plan.trials
    ] == [(1, "default", 0)]


@pytest.mark.parametrize(
    ("written", "choice"),
    [
        ("", None),
        ("load:", None),
        ("load: {}", LoadChoice()),
        (
            "load: {hosts: {labels: {role: 1}}, shards: 3}",
            LoadChoice(HostChoice(labels={"role": "1"}), 3),
        ),
        ("load: {hosts: {names: [a, b]}}", LoadChoice(HostChoice(("a", "b")))),
    ],
)
def test_load_comes_from_other_hosts_only_when_that_is_written(
    written: str, choice: LoadChoice | None
) -> None:
    assert load(f"{SMALL}{written}\n").job.load == choice


@pytest.mark.parametrize(
    "written",
    ["load: {shards: 0}", "load: [a]", "load: {host: {}}", "load: {hosts: {placement: any_host}}"],
)
def test_a_load_section_that_means_nothing_is_refused(written: str) -> None:
    assert codes(f"{SMALL}{written}\n")


def test_missing_python_is_told_and_left_to_each_host() -> None:
    loaded = load(SMALL.replace("simulated", "sglang"))
    assert ([finding.code for finding in loaded.findings], loaded.job.engine.python) == (
        ["python_default"],
        "",
    )


def test_a_byte_order_mark_is_no_fault() -> None:
    assert load_job(b"\xef\xbb\xbf" + SMALL.encode(), "job.yaml").job.name == "small"


def test_a_file_that_is_not_text_is_refused() -> None:
    assert codes(b"\xff\xfe\x00") == ["not_text"]
    assert codes(SMALL + "\0") == ["not_text"]


def test_a_huge_file_is_refused_before_it_is_parsed() -> None:
    assert codes("name: [" + "x" * (1 << 20)) == [
        "too_large"
    ]  # whoever parsed it would find that the list has no end


@pytest.mark.parametrize("opened", ["[", "[a, ", "{a: ", "- "])
def test_deep_nesting_is_refused(opened: str) -> None:
    assert codes(opened * 5000) == ["too_large"]


def test_multiplying_aliases_are_refused() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
    )
    assert "too_large" in codes(bomb)


@pytest.mark.parametrize("times", [2, 60])
def test_multiplying_merges_are_refused_before_they_multiply(times: int) -> None:
    """Each level merges the one before it `times` over, into keys that are the same: few values,
    and thirty levels would take hours.
    """
    levels = "".join(
        f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * times)}], b{n}: 1}}\n"
        for n in range(1, 31)
    )
    began_s = process_time()
    told = codes("m0: &m0 {a: 1}\n" + levels)
    assert told.count("too_large") == 1
    assert process_time() - began_s < 10


def test_a_mapping_merged_thousands_of_times_into_one_is_refused() -> None:
    wide = f"wide: &wide {{{', '.join(f'k{n}: 1' for n in range(2000))}}}\n"
    assert "too_large" in codes(f"{wide}all: {{<<: [{', '.join(['*wide'] * 2000)}]}}\n")


def test_a_thousand_faults_are_counted_not_all_told() -> None:
    told = codes(SMALL + "".join(f"wrong{n}: 1\n" for n in range(1000)))
    assert (len(told), told.count("more_findings")) == (101, 1)


def test_a_number_beyond_what_travels_exactly_is_refused() -> None:
    text = SMALL.replace(
        "{kind: simulated}",
        "{kind: simulated, args: {random_seed: 9007199254740993, watchdog_timeout: 1e999}}",
    )
    assert codes(text) == ["bad_number", "bad_number"]


def test_the_rejection_is_a_user_error_that_names_file_and_line() -> None:
    with pytest.raises(ConfigError, match=r"^job\.yaml:4:15: `model\.path` is 7") as rejected:
        load(SMALL.replace("path: m", "path: 7"))
    assert (rejected.value.exit_code, rejected.value.hint) == (
        ExitCode.USAGE_ERROR,
        'quote the value: "7"',
    )


def test_a_file_that_is_not_there_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_job_file(tmp_path / "none.yaml")


def test_a_finding_is_written_in_the_order_of_the_contract() -> None:
    finding = Finding("tab", "error", "job.yaml", 3, 1, "a.b", "what", "fix")
    assert list(finding.to_json()) == [
        "code",
        "severity",
        "file",
        "line",
        "column",
        "key",
        "message",
        "hint",
    ]
    assert str(finding) == "job.yaml:3:1: error tab: what (fix)"
