"""Reads what tools print about a host: nvidia-smi, rocm-smi, lscpu, topologies, kernel messages."""

from fleet_knowledge.host.host_text_detection import recognise_host_text

__all__ = ["recognise_host_text"]
