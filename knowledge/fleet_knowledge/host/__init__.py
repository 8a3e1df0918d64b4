"""Reading of what hosts tell of themselves: topology, GPUs, processors, and what they say when they are not well."""

from fleet_knowledge.host.recognise import recognise

__all__ = ["recognise"]
