"""Reads nvidia-smi, lscpu, topologies and kernel messages."""

from fleet_knowledge.host.host_text_detection import recognise_host_text

__all__ = ["recognise_host_text"]
