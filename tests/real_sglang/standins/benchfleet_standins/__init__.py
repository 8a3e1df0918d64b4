"""Owns what SGLang imports and a machine without a GPU cannot have: importable stand-ins that
compute nothing.

Python runs this at each start of the environment, by benchfleet_standins.pth.
"""

import importlib.util
import sys

from benchfleet_standins.absent import HIDDEN, AbsentPackages
from benchfleet_standins.attention_choice import AttentionChoice

sys.meta_path.append(AbsentPackages())
sys.meta_path.insert(0, AttentionChoice())

_find_spec = importlib.util.find_spec


def _find_spec_of_real_packages(name, package=None):
    """importlib.util.find_spec, for which a hidden package is not there: transformers would read
    its version and use it.
    """
    return None if name.partition(".")[0] in HIDDEN else _find_spec(name, package)


importlib.util.find_spec = _find_spec_of_real_packages
