"""Carries out the effects of one trial. Each effect ends with exactly one event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleet_agent.core.effects import CloseTrial
from fleet_agent.core.gates import run_gates, sharing_gates
from fleet_agent.core.load_search import SearchRun, judge_search_run, next_repeat
from fleet_agent.core.run_facts import RunFacts
from fleet_agent.core.steady_state import conclude_warm_up, level_of, rate_of
from fleet_agent.load.messages import LoadRequest
from fleet_agent.server.trial_server import TrialServer, TrialTools
from fleet_agent.storage import trial_artifacts
from fleet_knowledge.sglang_metrics.accept_rate import DraftShape
from fleet_protos import events as ev
from fleet_protos.attachment import file_ref
from fleet_protos.errors import ErrorKind, LoadError
from fleet_protos.trial_types import EngineKind, Gate, GateEffect, RunResult, TrialSpec, Workload
from fleet_protos.workload_rules import file_refs, load_of


class EffectHandlers:
    """Carries out the effects of one trial. Effects on the trial's server go through `server`."""

    def __init__(
        self, spec: TrialSpec, tools: TrialTools, gpus: tuple[int, ...], folder: Path
    ) -> None:
        self._spec = spec
        self._tools = tools
        self._folder = folder
        self.server = TrialServer(spec, tools, gpus, folder)
        # for an external server, its proof decides
        self._is_sglang = spec.engine.kind is not EngineKind.EXTERNAL
        self._flags: tuple[Gate, ...] = ()  # from the proof; each run of this launch carries them
        # the draft model's shape as the job sets it; the proof may show another
        self._shape = DraftShape.from_arguments(spec.engine.args)
        # per workload, the level of each valid run, which shows whether the runs are steady
        self._levels: dict[str, tuple[float, ...]] = {}

    async def prove(self) -> ev.Body:
        """Prove the configuration with `TrialServer.prove`. The flags of the proof are added to
        each later run.
        """
        proved = await self.server.prove()
        if isinstance(proved, ev.ConfigurationProved):
            self._flags = tuple(gate for gate in proved.gates if gate.effect is GateEffect.FLAG)
            self._is_sglang = self._is_sglang or "sglang" in proved.versions
            self._shape = DraftShape.from_arguments(
                {**self._spec.engine.args, **proved.effective_args}
            )
        return proved

    async def hold(self, deadline_s: float) -> ev.Body:
        """Keep a gang member running until this call is cancelled, which happens when the lead has
        finished. Return ServerFailed if the lead has not finished by `deadline_s` (monotonic
        seconds).
        """
        limit_s, rank = max(0.0, deadline_s - time.monotonic()), self._spec.engine.gang.rank
        await asyncio.sleep(limit_s)
        message = (
            f"rank {rank} was not released within its hold limit of {limit_s:.0f} s; "
            "the lead should have finished by then"
        )
        return ev.ServerFailed(
            ErrorKind.SERVER_UNHEALTHY,
            "gang_hold_limit",
            message,
            hint="check that the controller still runs",
        )

    async def warm_up(self, workload: Workload) -> ev.Body:
        """Send the warm-up of a workload. Return WarmedUp with the rate that was seen, which never
        counts in a result. Return LoadFailed if the load could not be sent.
        """
        requests = self._spec.measure.warmup_requests or max(1, workload.concurrency)
        try:
            reply = await self._tools.load.warm(
                replace(self._load_request(workload, 0), requests=requests, parquet="")
            )
        except LoadError as error:
            return ev.LoadFailed(workload.name, error.message)
        return ev.WarmedUp(workload.name, reply.requests_ok, reply.metrics.get("output_tok_s", 0.0))

    async def measure(
        self, workload: Workload, index: int, earlier_runs: Sequence[SearchRun] = ()
    ) -> ev.Body:
        """Measure one run. Return RunFinished with metrics, gates and the digest of the raw data.
        Return LoadFailed if the load could not be sent or its data could not be kept.

        In a search, `workload` is set to the load of this run, and `earlier_runs` are the runs of
        the search so far.
        """
        request = self._load_request(workload, index, earlier_runs)
        try:
            reply = await self._tools.load.run(request)
        except LoadError as error:
            return ev.LoadFailed(workload.name, error.message)
        if workload.search.of and request.flush and self._is_sglang and not reply.cache_flushed:
            return ev.LoadFailed(
                workload.name,
                "the server had not finished the previous load, or did not empty its cache",
            )
        facts = replace(RunFacts(**reply.facts), error_examples=reply.error_examples)
        gates = (
            *run_gates(facts, workload, self._spec.measure),
            *self._flags,
            *sharing_gates(self._spec),
        )
        artifact = trial_artifacts.make_artifact(
            Path(reply.parquet.path), self._artifact_root, sha256=reply.parquet.sha256
        )
        run = RunResult(
            workload=workload.name,
            index=index,
            started_unix_ns=reply.started_unix_ns,
            duration_s=reply.duration_s,
            time_scale=self._time_scale,
            requests_ok=reply.requests_ok,
            requests_failed=reply.requests_failed,
            output_tokens=reply.output_tokens,
            metrics=reply.metrics,
            gates=gates,
            artifact=artifact,
        )
        if workload.search.of:
            return ev.RunFinished(
                judge_search_run(run, workload, reply.facts["error_kinds"], earlier_runs)
            )
        return ev.RunFinished(self._with_warm_up_runs(run, workload))

    def _with_warm_up_runs(self, run: RunResult, workload: Workload) -> RunResult:
        """Return the run with two things added: how many runs of this launch were warm-up, and a
        gate if the launch never became steady.
        """
        if rate_of(run) is None:
            return run
        levels = self._levels[workload.name] = (
            *self._levels.get(workload.name, ()),
            level_of(run.metrics, workload),
        )
        warm_up, gates = conclude_warm_up(levels, self._spec.measure)
        return replace(run, warm_up_runs=warm_up, gates=(*run.gates, *gates))

    def _load_request(
        self, workload: Workload, index: int, earlier_runs: Sequence[SearchRun] = ()
    ) -> LoadRequest:
        spec = self._spec
        metadata = {
            "job": spec.job_id,
            "trial": spec.trial_id,
            "attempt": str(spec.attempt),
            "variant": spec.variant,
        }
        scope = spec.job_id if spec.engine.kind is EngineKind.EXTERNAL else ""
        draw = index
        # draws depend on the load and its repeat, not on the run's index: variants reach a load
        # after different numbers of runs
        if workload.search.of:
            scope, draw = (
                f"{scope}/{load_of(workload):g}",
                next_repeat(load_of(workload), earlier_runs),
            )
            metadata |= {"run": str(index), "load": f"{load_of(workload):g}"}
        return LoadRequest(
            url=self.server.url,
            token=self.server.api_key,
            workload=workload,
            seed=spec.measure.seed,
            run_index=draw,
            sglang=self._is_sglang,
            flush=spec.engine.kind is not EngineKind.EXTERNAL and workload.cache != "shared",
            model=spec.engine.model_path,
            time_scale=self._time_scale,
            speculation=bool(spec.engine.args.get("speculative_algorithm")),
            draft_steps=self._shape.steps or 0,
            draft_tokens=self._shape.draft_tokens or 0,
            parquet=str(
                self._folder
                / f"{trial_artifacts.safe_file_name(workload.name)}-{index:03d}.parquet"
            ),
            metadata=metadata,
            salt_scope=scope,
            files={
                file_ref(file): file.content
                for file in spec.files
                if file_ref(file) in file_refs(workload)
            },
        )

    async def collect(self) -> ev.Body:
        """Save the server's metrics and logs. Return EvidenceCollected with the artifacts that
        could be read. A server that has ended still has its log.
        """
        await self.server.wait_death_reported()
        if self.server.is_observable:
            await trial_artifacts.save_metrics(
                self.server.url, self._folder / "metrics.txt", self.server.api_key
            )
        artifacts = await asyncio.to_thread(
            trial_artifacts.collect_artifacts,
            self._folder,
            self._artifact_root,
            self.server.secrets,
        )
        return ev.EvidenceCollected(artifacts)

    async def close(self, order: CloseTrial) -> ev.Body:
        """Release the server's port and return TrialOver with the content of the order."""
        self.server.release_port()
        return ev.TrialOver(order.outcome, order.kind, order.failure_class, order.message)

    @property
    def _artifact_root(self) -> Path:
        return self._folder.parent.parent

    @property
    def _time_scale(self) -> float:
        return (
            self._spec.engine.simulation.time_scale
            if self._spec.engine.kind == EngineKind.SIMULATED
            else 1.0
        )
