"""Owns the endpoints of the simulated engine: which request gets which answer. Opens no socket and keeps no time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleet_protos.trial_types import Simulation
from fleet_simulator import request_parsing
from fleet_simulator.batching import Batching, Generation
from fleet_simulator.http_server import Exchange
from fleet_simulator.metrics_text import Snapshot, exposition
from fleet_simulator.prefix_cache import PrefixCache
from fleet_simulator.responses import GenerateReply, OpenAiReply, Shape, Telling, dump
from fleet_simulator.server_args import PLAIN_RUNNING_CAP
from fleet_simulator.token_text import Words, entry

VERSION = "0.5.23-simulated"
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
_NOT_FLUSHED = "Flush cache failed: there are running or waiting requests.\n"
_TEXT = "text/plain; charset=utf-8"
_METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HEALTH_TIMEOUT_S = 20.0
Later = Callable[[float, Callable[[], None]], Any]
_OTHER_MODEL = "somebody/else"


@dataclass(slots=True)
class Rates:
    """What the latest decode log line said; SGLang's gauges are as stale."""

    gen_throughput: float = 0.0
    accept_length: float = 0.0
    accept_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What one server is: its resolved arguments, how it was started, its knobs."""

    args: Mapping[str, Any]
    launch_command: str
    simulation: Simulation

    @property
    def is_member(self) -> bool:
        """Another node of the server serves; this one only says that it is there."""
        return int(self.args["node_rank"]) > 0

    @property
    def model(self) -> str:
        """The model that it says it serves."""
        return _OTHER_MODEL if self.simulation.wrong_identity else str(self.args["served_model_name"])

    @property
    def cap(self) -> int:
        """Requests that run at once; more only queue."""
        return int(self.args["max_running_requests"] or PLAIN_RUNNING_CAP)

    @property
    def draft_tokens(self) -> int:
        """Tokens verified in a step; 0 without speculation."""
        return int(self.args["speculative_num_draft_tokens"] or 0) if self.args["speculative_algorithm"] else 0


class Answer:
    """The Sink of one generation: shapes its tokens and sends them."""

    def __init__(self, exchange: Exchange, shape: Shape, *, stream: bool) -> None:
        self._exchange = exchange
        self._shape = shape
        self._stream = stream
        self._frames: list[bytes] = []

    def gave(self, generation: Generation, count: int) -> None:
        if not self._stream:
            return
        if generation.done == count:
            self._frames.append(self._shape.opening(generation))
        self._frames.append(self._shape.delta(generation, count))

    def flush(self, generation: Generation) -> None:
        if generation.finished and not self._stream:
            self._exchange.send(200, self._shape.whole(generation))
            return
        if generation.finished:
            self._frames.append(self._shape.last(generation))
        if self._frames:
            frames, self._frames = b"".join(self._frames), []
            self._exchange.write_frames(frames)
        if generation.finished and self._stream:
            self._exchange.end_stream()


class Api:
    """Routes requests. `submit` hands a generation to the engine; `later(seconds, call)` is the only way it waits."""

    def __init__(self, setup: Setup, batching: Batching, submit: Callable[[Generation], None], later: Later) -> None:
        self.ready = False
        self.rates = Rates()
        self._setup = setup
        self._batching = batching
        self._submit = submit
        self._later = later
        self._words = Words()
        self._cache = PrefixCache(enabled=not setup.args["disable_radix_cache"])
        self._clock_offset_s = time.time_ns() / 1e9 - time.monotonic()
        self._gets: dict[str, Callable[[Exchange], None]] = {
            "/health": lambda exchange: exchange.send(200 if self.ready else 503),
            "/health_generate": self._health_generate,
            "/v1/models": self._models,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/metrics": self._metrics,
            "/flush_cache": self._flush_cache,
        }
        self._posts: dict[str, Callable[[Exchange], None]] = {
            "/generate": lambda exchange: self._generate(exchange, request_parsing.generate, self._native),
            "/v1/chat/completions": lambda exchange: self._generate(exchange, request_parsing.chat, self._chat),
            "/v1/completions": lambda exchange: self._generate(exchange, request_parsing.completion, self._completion),
            "/flush_cache": self._flush_cache,
        }

    def serve(self, exchange: Exchange) -> None:
        """Answer one request, now or when its tokens are there."""
        method, path = exchange.request.method, exchange.request.path
        if self._setup.is_member:
            known = path in ("/ping", "/health", "/health_generate")
            exchange.send((200 if self.ready else 503) if known else 404)
            return
        route = (self._posts if method in ("POST", "PUT") else self._gets).get(path)
        if route is not None:
            route(exchange)
        elif path in self._posts or path in self._gets:
            exchange.send(405, dump({"detail": "Method Not Allowed"}))
        else:
            exchange.send(404, dump({"detail": "Not Found"}))

    def _health_generate(self, exchange: Exchange) -> None:
        if self.ready and self._setup.simulation.hang:
            self._later(_HEALTH_TIMEOUT_S, lambda: exchange.send(503))
        else:
            exchange.send(200 if self.ready else 503)

    def _models(self, exchange: Exchange) -> None:
        model = self._setup.model
        card = {"id": model, "object": "model", "created": time.time_ns() // 10**9, "owned_by": "sglang", "root": model, "parent": None}
        length = self._setup.args["context_length"] or 131072
        exchange.send(200, dump({"object": "list", "data": [{**card, "max_model_len": length}]}))

    def _model_info(self, exchange: Exchange) -> None:
        args, path = self._setup.args, self._identity()
        info = {
            "model_path": path,
            "served_model_name": self._setup.model,
            "tokenizer_path": args["tokenizer_path"],
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": args["load_format"],
            "model_type": "simulated",
            "architectures": ["SimulatedForCausalLM"],
        }
        exchange.send(200, dump(info))

    def _identity(self) -> str:
        return _OTHER_MODEL if self._setup.simulation.wrong_identity else str(self._setup.args["model_path"])

    def _server_info(self, exchange: Exchange) -> None:
        state = {
            "last_gen_throughput": self.rates.gen_throughput,
            "effective_max_running_requests_per_dp": self._setup.cap,
            **({"avg_spec_accept_length": self.rates.accept_length} if self._setup.draft_tokens else {}),
        }
        info = {
            **self._setup.args,
            "model_path": self._identity(),
            "served_model_name": self._setup.model,
            "launch_command": self._setup.launch_command,
            "status": "ready" if self.ready else "starting",
            "internal_states": [state],
            "version": VERSION,
            "frontend": "python",
            "simulated": True,
            "time_scale": self._setup.simulation.time_scale,
            "simulation": asdict(self._setup.simulation),
        }
        exchange.send(200, dump(info))

    def _metrics(self, exchange: Exchange) -> None:
        setup, rates = self._setup, self.rates
        snapshot = Snapshot(
            model=setup.model,
            time_scale=setup.simulation.time_scale,
            running=len(self._batching.running),
            queued=len(self._batching.waiting),
            gen_throughput=rates.gen_throughput,
            accept_length=rates.accept_length,
            accept_rate=rates.accept_rate,
            steps=int(setup.args["speculative_num_steps"] or 0),
            draft_tokens=setup.draft_tokens,
        )
        exchange.send(200, exposition(self._batching.totals, snapshot), _METRICS_TEXT)

    def _flush_cache(self, exchange: Exchange) -> None:
        if self._batching.busy:
            exchange.send(400, _NOT_FLUSHED.encode(), _TEXT)
            return
        self._cache.flush()
        self.rates.accept_length = 0.0
        exchange.send(200, _FLUSHED.encode(), _TEXT)

    def _generate(self, exchange: Exchange, read: Callable[[dict[str, Any]], request_parsing.Ask], shape: Callable[[Telling], Shape]) -> None:
        try:
            ask = read(request_parsing.parse_body(exchange.request.body))
        except request_parsing.Refused as refused:
            error = {"object": "error", "message": str(refused), "type": refused.kind, "param": None, "code": 400}
            exchange.send(400, dump(error))
            return
        if not self.ready:
            exchange.send(503)
        elif not self._setup.simulation.hang:
            self._start(exchange, ask, shape)

    def _start(self, exchange: Exchange, ask: request_parsing.Ask, shape: Callable[[Telling], Shape]) -> None:
        telling = Telling(
            id=os.urandom(16).hex(),
            model=ask.model,
            created=time.time_ns() // 10**9,
            wanted=ask.wanted,
            words=self._words,
            draft_tokens=self._setup.draft_tokens,
            cache_report=bool(self._setup.args["enable_cache_report"]),
            clock_offset_s=self._clock_offset_s,
        )
        place = entry(ask.prompt)
        want, stops = request_parsing.tokens_to_give(ask, place, short=self._setup.simulation.short_outputs)
        answer = Answer(exchange, shape(telling), stream=ask.wanted.stream)
        generation = Generation(len(ask.prompt), self._cache.look_up_and_keep(ask.prompt), want, place, stops, answer)
        if ask.wanted.stream:
            exchange.start_stream()
        exchange.on_lost = lambda: self._batching.cancel(generation)
        self._submit(generation)

    @staticmethod
    def _native(telling: Telling) -> Shape:
        return GenerateReply(telling)

    @staticmethod
    def _chat(telling: Telling) -> Shape:
        return OpenAiReply(telling, chat=True)

    @staticmethod
    def _completion(telling: Telling) -> Shape:
        return OpenAiReply(telling, chat=False)
