"""Figures that SGLang's endpoints and benchmarks print: read, aggregated and judged; nothing is measured here."""

from fleet_knowledge.sglang_metrics.metrics_text_detection import recognise, window_of

__all__ = ["recognise", "window_of"]
