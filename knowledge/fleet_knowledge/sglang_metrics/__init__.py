"""Reads SGLang's /metrics, /server_info and benchmark output."""

from fleet_knowledge.sglang_metrics.metrics_text_detection import (
    accept_length_between,
    recognise_metrics_text,
)

__all__ = ["accept_length_between", "recognise_metrics_text"]
