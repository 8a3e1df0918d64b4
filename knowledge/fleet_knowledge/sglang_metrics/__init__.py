"""Figures that SGLang's endpoints and benchmarks print: read, aggregated and judged; nothing is
measured here.
"""

from fleet_knowledge.sglang_metrics.metrics_text_detection import (
    accept_length_between,
    recognise_metrics_text,
)

__all__ = ["accept_length_between", "recognise_metrics_text"]
