"""Reading of what hosts tell of themselves: topology, GPUs, processors, and what they say when they
are not well.
"""

from fleet_knowledge.host.host_text_detection import recognise_host_text

__all__ = ["recognise_host_text"]
