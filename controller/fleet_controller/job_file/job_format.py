"""Describes the keys of the job file: the model at each path, and what to write where a key is
missing.
"""

from __future__ import annotations

from fleet_controller.job_file import job_models, workload_models
from fleet_controller.yaml.file_format import FileFormat

JOB_FORMAT = FileFormat(
    noun="the job",
    models={
        (): job_models.JobFile,
        ("model",): job_models.Model,
        ("engine",): job_models.Engine,
        ("engine", "container"): job_models.Container,
        ("engine", "phase_timeouts"): job_models.PhaseTimeouts,
        ("engine", "simulation"): job_models.Simulation,
        ("factors", "*", "*"): job_models.Level,
        ("factors", "*", "*", "simulation"): job_models.Simulation,
        ("workloads", "*"): workload_models.Workload,
        ("workloads", "*", "slo"): workload_models.Slo,
        ("workloads", "*", "search"): workload_models.Search,
        ("measure",): job_models.Measure,
        ("measure", "runs"): job_models.Runs,
        ("hosts",): job_models.Hosts,
        ("workloads", "*", "ramp", "*"): workload_models.Stage,
        ("workloads", "*", "shared_prefix"): workload_models.SharedPrefix,
        ("workloads", "*", "sessions"): workload_models.Sessions,
        ("workloads", "*", "mix", "*"): workload_models.Part,
        ("workloads", "*", "mix", "*", "shared_prefix"): workload_models.SharedPrefix,
        ("workloads", "*", "mix", "*", "output_tokens"): workload_models.Lengths,
        ("workloads", "*", "mix", "*", "input_tokens"): workload_models.Lengths,
        ("workloads", "*", "input_tokens"): workload_models.Lengths,
        ("workloads", "*", "output_tokens"): workload_models.Lengths,
        ("workloads", "*", "output_tokens", "uniform"): workload_models.Uniform,
        ("workloads", "*", "output_tokens", "lognormal"): workload_models.Lognormal,
    },
    missing={
        "apiVersion": "write `apiVersion: benchfleet/v1`",
        "kind": "write `kind: Job`",
        "engine.kind": "write sglang, simulated or external",
        "name": "write a short label, such as `name: nccl-test`",
        "model": "write `model: {path: …}`",
        "path": "write the folder or the name of the model",
        "engine": "write `engine: {kind: sglang, …}`",
        "workloads": "write `workloads: {single: {concurrency: 1, output_tokens: 500}}`",
        "output_tokens": "write how many tokens each answer has, such as `output_tokens: 500`",
        "of": "write which load to search: `of: rate` or `of: concurrency`",
        "from": "write the first load, which should surely meet the slo, such as `from: 1`",
        "to": "write the highest load to try, such as `to: 64`",
        "turns": "write how many requests a session has, such as `turns: 4`",
        "groups": "write the number of different beginnings, such as `groups: 4`",
        "tokens": "write the length of each beginning in tokens, such as `tokens: 1000`",
        "start": "write the rate at which the stage begins, such as `start: 0`",
        "end": "write the rate at which the stage ends, such as `end: 8`",
        "duration": "write the duration, such as `duration: 60s`",
        "min": "write the smallest number of tokens, such as `min: 100`",
        "max": "write the largest number of tokens, such as `max: 2000`",
        "median": "write the median number of tokens, such as `median: 200`",
        "sigma": "write how widely the lengths vary, such as `sigma: 0.8`",
    },
    empty={
        "workloads": (
            "write at least one workload, such as `single: {concurrency: 1, output_tokens: 500}`"
        ),
        "factors.*": "give the factor at least one level, or remove the factor",
    },
    common=frozenset({"of", "from", "to"}),
    names={
        ("name",): (
            "use at most 48 lower-case letters, digits and dashes, with a letter or digit at both "
            "ends"
        )
    },
)
