"""Serves the HTTP endpoints of the simulated server: maps each request to its response."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleet_protos.trial_types import Simulation
from fleet_simulator import request_parsing
from fleet_simulator.batching import Batching, Generation
from fleet_simulator.http_server import HttpExchange, HttpRequest
from fleet_simulator.metrics_text import MetricsSnapshot, render_metrics
from fleet_simulator.prefix_cache import PrefixCache
from fleet_simulator.responses import (
    GenerateFormat,
    OpenAiFormat,
    ResponseContext,
    ResponseFormat,
    dump_json,
)
from fleet_simulator.server_args import DEFAULT_RUNNING_CAP
from fleet_simulator.token_text import TokenRing, ring_position

VERSION = "0.5.23-simulated"
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
_NOT_FLUSHED = "Flush cache failed: there are running or waiting requests.\n"
_TEXT = "text/plain; charset=utf-8"
_METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HEALTH_TIMEOUT_S = 20.0
CallLater = Callable[[float, Callable[[], None]], Any]
_OTHER_MODEL = "somebody/else"


@dataclass(slots=True)
class DecodeRates:
    """Holds the rates in the newest decode line of the log. SGLang's gauges show these values until
    the next such line.
    """

    gen_throughput: float = 0.0
    accept_length: float = 0.0
    accept_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """Holds how one server is set up: its resolved arguments, its command line and its simulation
    settings.
    """

    args: Mapping[str, Any]
    launch_command: str
    simulation: Simulation

    @property
    def is_member(self) -> bool:
        """Return whether this node only answers health checks, because another node of the server
        serves the requests.
        """
        return int(self.args["node_rank"]) > 0

    @property
    def model(self) -> str:
        """Return the name of the model that the server reports."""
        if self.simulation.wrong_identity:
            return _OTHER_MODEL
        return str(self.args["served_model_name"])

    @property
    def cap(self) -> int:
        """Return the maximum number of requests that run at the same time. More requests wait in
        the queue.
        """
        return int(self.args["max_running_requests"] or DEFAULT_RUNNING_CAP)

    @property
    def draft_tokens(self) -> int:
        """Return the number of tokens that one step verifies; 0 without speculation."""
        if not self.args["speculative_algorithm"]:
            return 0
        return int(self.args["speculative_num_draft_tokens"] or 0)


class GenerationResponder:
    """Formats the tokens of one generation and sends them to the client. Implements TokenSink."""

    def __init__(
        self, exchange: HttpExchange, response_format: ResponseFormat, *, stream: bool
    ) -> None:
        self._exchange = exchange
        self._format = response_format
        self._stream = stream
        self._frames: list[bytes] = []

    def on_tokens(self, generation: Generation, count: int) -> None:
        if not self._stream:
            return
        if generation.done == count:
            self._frames.append(self._format.first_frames(generation))
        self._frames.append(self._format.delta(generation, count))

    def flush(self, generation: Generation) -> None:
        if generation.finished and not self._stream:
            self._exchange.send(200, self._format.full_body(generation))
            return
        if generation.finished:
            self._frames.append(self._format.last_frames(generation))
        if self._frames:
            frames, self._frames = b"".join(self._frames), []
            self._exchange.write_frames(frames)
        if generation.finished and self._stream:
            self._exchange.end_stream()


class Api:
    """Routes each request to its endpoint.

    `submit` hands a generation to the batching loop. `call_later(seconds, call)` runs `call` after
    a delay; endpoints wait in no other way.
    """

    def __init__(
        self,
        setup: ServerSetup,
        batching: Batching,
        submit: Callable[[Generation], None],
        call_later: CallLater,
    ) -> None:
        self.ready = False
        self.rates = DecodeRates()
        self._setup = setup
        self._batching = batching
        self._submit = submit
        self._later = call_later
        self._words = TokenRing()
        self._cache = PrefixCache(enabled=not setup.args["disable_radix_cache"])
        self._clock_offset_s = time.time_ns() / 1e9 - time.monotonic()
        self._gets: dict[str, Callable[[HttpExchange], None]] = {
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
        self._posts: dict[str, Callable[[HttpExchange], None]] = {
            "/generate": lambda exchange: self._generate(
                exchange, request_parsing.parse_generate, self._native
            ),
            "/v1/chat/completions": lambda exchange: self._generate(
                exchange, request_parsing.parse_chat, self._chat
            ),
            "/v1/completions": lambda exchange: self._generate(
                exchange, request_parsing.parse_completion, self._completion
            ),
            "/flush_cache": self._flush_cache,
        }

    def serve(self, exchange: HttpExchange) -> None:
        """Respond to one request at once, or when its tokens exist."""
        method, path = exchange.request.method, exchange.request.path
        if not self._is_allowed(exchange.request):
            exchange.send(401, dump_json({"error": "Unauthorized"}))
            return
        if self._setup.is_member:
            known = path in ("/ping", "/health", "/health_generate")
            exchange.send((200 if self.ready else 503) if known else 404)
            return
        route = (self._posts if method in ("POST", "PUT") else self._gets).get(path)
        if route is not None:
            route(exchange)
        elif path in self._posts or path in self._gets:
            exchange.send(405, dump_json({"detail": "Method Not Allowed"}))
        else:
            exchange.send(404, dump_json({"detail": "Not Found"}))

    def _is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the request carries the server's API key or needs none.

        As with SGLang, health checks and metrics need no key. Without a configured key, no request
        needs one.
        """
        key = self._setup.args["api_key"]
        if not key or request.path.startswith(("/health", "/metrics")):
            return True
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {key}".encode())

    def _health_generate(self, exchange: HttpExchange) -> None:
        if self.ready and self._setup.simulation.hang:
            self._later(_HEALTH_TIMEOUT_S, lambda: exchange.send(503))
        else:
            exchange.send(200 if self.ready else 503)

    def _models(self, exchange: HttpExchange) -> None:
        model = self._setup.model
        card = {
            "id": model,
            "object": "model",
            "created": time.time_ns() // 10**9,
            "owned_by": "sglang",
            "root": model,
            "parent": None,
        }
        length = self._setup.args["context_length"] or 131072
        exchange.send(
            200, dump_json({"object": "list", "data": [{**card, "max_model_len": length}]})
        )

    def _model_info(self, exchange: HttpExchange) -> None:
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
        exchange.send(200, dump_json(info))

    def _identity(self) -> str:
        if self._setup.simulation.wrong_identity:
            return _OTHER_MODEL
        return str(self._setup.args["model_path"])

    def _server_info(self, exchange: HttpExchange) -> None:
        state = {
            "last_gen_throughput": self.rates.gen_throughput,
            "effective_max_running_requests_per_dp": self._setup.cap,
            **(
                {"avg_spec_accept_length": self.rates.accept_length}
                if self._setup.draft_tokens
                else {}
            ),
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
        exchange.send(200, dump_json(info))

    def _metrics(self, exchange: HttpExchange) -> None:
        setup, rates = self._setup, self.rates
        snapshot = MetricsSnapshot(
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
        exchange.send(200, render_metrics(self._batching.totals, snapshot), _METRICS_TEXT)

    def _flush_cache(self, exchange: HttpExchange) -> None:
        if self._batching.busy:
            exchange.send(400, _NOT_FLUSHED.encode(), _TEXT)
            return
        self._cache.flush()
        self.rates.accept_length = 0.0
        exchange.send(200, _FLUSHED.encode(), _TEXT)

    def _generate(
        self,
        exchange: HttpExchange,
        parse: Callable[[dict[str, Any]], request_parsing.GenerationRequest],
        make_format: Callable[[ResponseContext], ResponseFormat],
    ) -> None:
        try:
            request = parse(request_parsing.parse_json_body(exchange.request.body))
        except request_parsing.RequestRejected as refused:
            error = {
                "object": "error",
                "message": str(refused),
                "type": refused.kind,
                "param": None,
                "code": 400,
            }
            exchange.send(400, dump_json(error))
            return
        if not self.ready:
            exchange.send(503)
        elif not self._setup.simulation.hang:
            self._start(exchange, request, make_format)

    def _start(
        self,
        exchange: HttpExchange,
        request: request_parsing.GenerationRequest,
        make_format: Callable[[ResponseContext], ResponseFormat],
    ) -> None:
        context = ResponseContext(
            id=os.urandom(16).hex(),
            model=request.model,
            created=time.time_ns() // 10**9,
            options=request.options,
            ring=self._words,
            draft_tokens=self._setup.draft_tokens,
            cache_report=bool(self._setup.args["enable_cache_report"]),
            clock_offset_s=self._clock_offset_s,
        )
        start = ring_position(request.prompt)
        token_limit, stops_itself = request_parsing.choose_output_tokens(
            request, start, short=self._setup.simulation.short_outputs
        )
        responder = GenerationResponder(
            exchange, make_format(context), stream=request.options.stream
        )
        generation = Generation(
            len(request.prompt),
            self._cache.match_and_insert(request.prompt),
            token_limit,
            start,
            stops_itself,
            responder,
        )
        if request.options.stream:
            exchange.start_stream()
        exchange.on_lost = lambda: self._batching.cancel(generation)
        self._submit(generation)

    @staticmethod
    def _native(context: ResponseContext) -> ResponseFormat:
        return GenerateFormat(context)

    @staticmethod
    def _chat(context: ResponseContext) -> ResponseFormat:
        return OpenAiFormat(context, chat=True)

    @staticmethod
    def _completion(context: ResponseContext) -> ResponseFormat:
        return OpenAiFormat(context, chat=False)
