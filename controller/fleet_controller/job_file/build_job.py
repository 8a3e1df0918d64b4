"""Builds the planner's job from the models of a job file: fills in defaults, expands lists of
workloads and resolves argument names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fleet_controller.core.job import HostChoice, Job, Level, LoadChoice
from fleet_controller.job_file import job_models, workload_models
from fleet_controller.job_file.attached_files import (
    PROMPTS,
    TRACE,
    NamedFiles,
    attached_name,
    trace_extent,
)
from fleet_controller.job_file.sglang_arguments import normalise_arguments
from fleet_controller.job_file.workload_models import (
    DEFAULT_PROMPTS,
    FILE_PREFIX,
    RANDOM_ON_WIRE,
    RANDOM_PROMPTS,
)
from fleet_controller.yaml.document import Document
from fleet_controller.yaml.key_path import KeyPath, dotted
from fleet_protos.attachment import Trace, file_ref
from fleet_protos.trial_types import (
    Container,
    EngineKind,
    EngineSpec,
    Gang,
    Lengths,
    Measure,
    Part,
    Search,
    SharedPrefix,
    Simulation,
    Slo,
    Stage,
    Workload,
)

_KIND = {
    "sglang": EngineKind.SGLANG,
    "simulated": EngineKind.SIMULATED,
    "external": EngineKind.EXTERNAL,
}
_SIMULATION_FIELD = {"ready_after": "ready_after_s", "crash_after": "crash_after_s"}
_DEFAULT_RUNS_MAX = 20


def build_job(file: job_models.JobFile, document: Document, named: NamedFiles) -> Job:
    """Return the job that `file` describes. A workload whose trace file could not be read is left
    out.
    """
    runs = file.measure.runs
    return Job(
        name=file.name,
        engine=_engine(file),
        workloads=tuple(
            cell
            for name, workload in file.workloads.items()
            for cell in _expand_workload(name, workload, named)
        ),
        measure=Measure(
            runs_min=runs.min,
            runs_max=runs.max or max(runs.min, _DEFAULT_RUNS_MAX),
            precision=file.measure.precision,
            confidence=file.measure.confidence,
            warmup_requests=file.measure.warmup,
            seed=file.measure.seed,
        ),
        factors={
            factor: {name: _level(level) for name, level in levels.items()}
            for factor, levels in file.factors.items()
        },
        exclude=tuple(dict(part) for part in file.exclude),
        baseline=file.baseline
        if file.baseline is not None
        else {factor: next(iter(levels)) for factor, levels in file.factors.items()},
        launches=file.measure.launches,
        margin=file.measure.margin,
        gpus=file.engine.gpus,
        priority=file.priority,
        hosts=HostChoice(
            file.hosts.names,
            file.hosts.labels,
            file.hosts.placement == "every_host",
            file.hosts.share,
        ),
        load=_load(file.load),
        files=tuple(named.files.values()),
        judge={
            cell.name: workload.judge
            for name, workload in file.workloads.items()
            if workload.judge
            for cell in _expand_workload(name, workload, named)
        },
        file=document.file,
        places={
            dotted(path): document.place(path)
            for path in (*document.keys, *_list_item_paths(document))
        },
    )


def _list_item_paths(document: Document) -> Iterator[KeyPath]:
    """Yield the paths of list items, which the document's keys do not include."""
    return (path for path in document.values if path and isinstance(path[-1], int))


def _load(load: job_models.Load | None) -> LoadChoice | None:
    if load is None:
        return None
    return LoadChoice(HostChoice(load.hosts.names, load.hosts.labels), load.shards or 0)


def _engine(file: job_models.JobFile) -> EngineSpec:
    engine = file.engine
    return EngineSpec(
        kind=_KIND[engine.kind],
        model_path=file.model.path,
        args={
            name: value
            for name, value in normalise_arguments(engine.args).items()
            if value is not None
        },
        env={name: value for name, value in engine.env.items() if value is not None},
        env_removed=tuple(sorted(name for name, value in engine.env.items() if value is None)),
        gpus=engine.gpus or 0,
        python=(engine.python or "")
        if engine.kind == "sglang" and engine.container is None
        else "",
        url=(engine.url or "").rstrip("/"),
        ready_timeout_s=engine.ready_timeout,
        stop_timeout_s=engine.stop_timeout,
        simulation=replace(Simulation(), **_simulation_settings(engine.simulation)),
        container=_container(engine.container),
        entry=engine.entry or "",
        cpu_binding=engine.cpu_binding or "",
        phase_timeouts_s=engine.phase_timeouts.model_dump(exclude_none=True)
        if engine.phase_timeouts
        else {},
        proof=engine.proof,
        gang=Gang(nodes=engine.nodes) if engine.nodes > 1 else Gang(),
    )


def _container(container: job_models.Container | None) -> Container:
    if container is None:
        return Container()
    return Container(
        image=container.image,
        runtime=container.runtime or "",
        shm_size=container.shm_size or "",
        mounts=dict(container.mounts),
        python=container.python or "",
    )


def _level(level: job_models.Level) -> Level:
    return Level(normalise_arguments(level.args), level.env, _simulation_settings(level.simulation))


def _simulation_settings(simulation: job_models.Simulation | None) -> Mapping[str, Any]:
    """Return the simulation settings that the job file contains, by the field names of
    `Simulation`.
    """
    written = simulation.model_fields_set if simulation else set()
    return {
        _SIMULATION_FIELD.get(name, name): getattr(simulation, name)
        for name in job_models.Simulation.model_fields
        if name in written
    }


def _expand_workload(
    name: str, workload: workload_models.Workload, named: NamedFiles
) -> Iterator[Workload]:
    """Yield one workload for each value of a list, named like `busy@8` or `open@4/s`. Without a
    list, yield one workload under its plain name.
    """
    if workload.trace is not None:
        yield from _trace_workloads(name, workload, named)
        return
    if workload.search is not None:
        yield _search_workload(_common_workload(name, workload, named), workload, workload.search)
        return
    if workload.ramp is not None:
        stages = tuple(Stage(stage.start, stage.end, stage.duration) for stage in workload.ramp)
        duration_s = sum(stage.duration_s for stage in stages)
        yield replace(
            _common_workload(name, workload, named),
            stages=stages,
            duration_s=duration_s,
            **_arrivals(workload),
        )
        return
    if workload.rate is not None:
        rates = workload.rate if isinstance(workload.rate, tuple) else (workload.rate,)
        for rate in rates:
            cell = f"{name}@{rate:g}/s" if isinstance(workload.rate, tuple) else name
            yield replace(
                _common_workload(cell, workload, named),
                rate_per_s=float(rate),
                duration_s=workload.duration or 0.0,
                **_arrivals(workload),
            )
        return
    counts = (
        workload.concurrency
        if isinstance(workload.concurrency, tuple)
        else (workload.concurrency or 1,)
    )
    for count in counts:
        cell = f"{name}@{count}" if isinstance(workload.concurrency, tuple) else name
        turns = workload.sessions.turns if workload.sessions else 1
        requests = workload.requests or (
            turns * count * (1 if count == 1 else 2)
            if workload.sessions
            else default_requests(count)
        )
        yield replace(_common_workload(cell, workload, named), concurrency=count, requests=requests)


def _search_workload(
    cell: Workload, workload: workload_models.Workload, written: workload_models.Search
) -> Workload:
    """Return the workload of a search. It has neither a concurrency nor a rate, so an agent that
    does not know searches refuses it.
    """
    search = Search(
        written.of, float(written.from_), float(written.to), written.within, written.goodput
    )
    if written.of == "rate":
        return replace(
            cell, search=search, duration_s=workload.duration or 0.0, **_arrivals(workload)
        )
    return replace(cell, search=search, requests=workload.requests or 0)


def _trace_workloads(
    name: str, workload: workload_models.Workload, named: NamedFiles
) -> Iterator[Workload]:
    file = attached_name(TRACE, workload.trace or "")
    trace, speed = named.contents.get(file), workload.speed or 1.0
    if isinstance(trace, Trace):
        part = trace.truncated(*trace_extent(workload))
        duration_s = part.at_ms[-1] / 1000 / speed
        ref = file_ref(named.files[file])
        prompts = RANDOM_ON_WIRE if workload.prompts == RANDOM_PROMPTS else ""
        cell = _common_workload(name, workload, named)
        cell = replace(cell, cache=workload.cache or ("flush" if part.blocks else ""))
        yield replace(
            cell,
            trace=ref,
            speed=speed,
            requests=len(part.at_ms),
            duration_s=duration_s,
            prompts=prompts,
        )


def _arrivals(workload: workload_models.Workload) -> Mapping[str, Any]:
    return {"arrivals": workload.arrivals or "poisson", "burstiness": workload.burstiness or 0.0}


def default_requests(concurrency: int) -> int:
    """Return the number of requests of one run if the job file does not say it. This is 1 at
    concurrency 1, else two waves of requests but at least four requests.
    """
    return 1 if concurrency == 1 else max(4, 2 * concurrency)


def _common_workload(name: str, workload: workload_models.Workload, named: NamedFiles) -> Workload:
    slo, parts = workload.slo or workload_models.Slo(), workload.mix or ()
    mix = tuple(Part(weight=part.weight, **_request_fields(part, named)) for part in parts)
    if (
        not mix
        and workload.trace is None
        and (workload.sessions or workload.shared_prefix or workload.cache in ("flush", "shared"))
    ):
        mix = (
            Part(**_request_fields(workload, named)),
        )  # an agent that does not know these keys would ignore them, but it refuses a mixture
    return Workload(
        name=name,
        vocabulary=workload.vocabulary or 0,
        turns=workload.sessions.turns if workload.sessions else 0,
        think_s=workload.sessions.think_time if workload.sessions else 0.0,
        cache=workload.cache
        or (
            "flush"
            if workload.sessions or any(part.shared_prefix for part in (workload, *parts))
            else ""
        ),
        mix=mix,
        **({} if mix else _request_fields(workload, named)),
        api=workload.api,
        slo=Slo(ttft_p99_s=slo.ttft_p99 or 0.0, tpot_p99_s=slo.tpot_p99 or 0.0),
        request_timeout_s=workload.request_timeout,
    )


def _request_fields(requests: workload_models.Requests, named: NamedFiles) -> dict[str, Any]:
    """Return the fields that a workload and a part of a mixture have in common."""
    shared = requests.shared_prefix
    return {
        "prompts": _prompts(requests.prompts or DEFAULT_PROMPTS, named),
        "input_tokens": requests.input_tokens if isinstance(requests.input_tokens, int) else 0,
        "input": _lengths(requests.input_tokens),
        "output_tokens": requests.output_tokens if isinstance(requests.output_tokens, int) else 0,
        "output": _lengths(requests.output_tokens),
        "prefix": SharedPrefix(shared.groups, shared.tokens) if shared else SharedPrefix(),
    }


def _prompts(written: str, named: NamedFiles) -> str:
    """Return the prompts as agents know them. A file is named by its ref."""
    if written.startswith(FILE_PREFIX):
        file = named.files.get(attached_name(PROMPTS, written.removeprefix(FILE_PREFIX)))
        return f"{FILE_PREFIX}{file_ref(file)}" if file else DEFAULT_PROMPTS
    return RANDOM_ON_WIRE if written == RANDOM_PROMPTS else written


def _lengths(written: int | workload_models.Lengths | None) -> Lengths:
    if written is None or isinstance(written, int):
        return Lengths()
    if written.uniform is not None:
        return Lengths("uniform", written.uniform.min, written.uniform.max)
    drawn = written.lognormal
    return (
        Lengths("lognormal", most=drawn.max, median=drawn.median, sigma=drawn.sigma)
        if drawn is not None
        else Lengths()
    )
