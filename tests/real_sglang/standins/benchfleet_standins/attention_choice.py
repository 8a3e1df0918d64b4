"""Owns one answer to SGLang 0.5.23: that its CPU attention backend `intel_amx` may stay, although
this CPU may lack AMX.

Speculation runs on that backend alone, and its kernels here are pure torch. Nothing else is told
that there is AMX.
"""

import importlib.abc
import importlib.util
import sys

_MODULE = "sglang.srt.arg_groups.overrides"


class _Platform:
    """SGLang's facts about the machine, with this one changed."""

    has_amx = True

    def __init__(self, platform):
        self._platform = platform

    def __getattr__(self, name):
        return getattr(self._platform, name)


class AttentionChoice(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the module that decides on the backend as it is, then wraps its question about the
    platform.
    """

    def find_spec(self, fullname, path=None, target=None):
        """The module's own spec with this loader around its own, else None."""
        if fullname != _MODULE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._real = spec.loader
                return importlib.util.spec_from_loader(fullname, self, origin=spec.origin)
        return None

    def create_module(self, spec):
        """As the real loader does."""
        return self._real.create_module(spec)

    def exec_module(self, module):
        """The real code first."""
        self._real.exec_module(module)
        real = module.get_platform
        module.get_platform = lambda: _Platform(real())
