"""Owns modules that can be imported and not used: each name in them is a placeholder that raises
when something is computed with it.
"""

import importlib.abc
import importlib.machinery
import types

HIDDEN = ("triton", "torchvision")  # wholly absent here
PARTLY = "sgl_kernel."  # our own package; its modules that no CPU server calls are absent
NOT_THERE = {("triton.runtime.driver", "active")}  # how SGLang asks which GPU there is


class Kernel:
    """A function of a GPU language: known by name, launched never."""

    def __init__(self, function):
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)

    def __getitem__(self, grid):
        raise NotImplementedError(
            f"{self.__name__} is a GPU kernel, and this environment has no GPU"
        )

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(
            f"{self.__name__} is a GPU kernel, and this environment has no GPU"
        )


class Placeholder:
    """Any name of an absent module. As a decorator it wraps the function as a Kernel; its
    attributes are placeholders too.
    """

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__") or (self._name, name) in NOT_THERE:
            raise AttributeError(f"{self._name}.{name}")
        return Placeholder(f"{self._name}.{name}")

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | Kernel):
            return args[0] if isinstance(args[0], Kernel) else Kernel(args[0])
        return self

    def __repr__(self):
        return f"<{self._name}: not in this environment>"


class AbsentModule(types.ModuleType):
    """A module of which every name exists. A name with a capital is a class, so that `except` and
    `isinstance` can take it.
    """

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        value = (
            type(name, (Exception,), {"__module__": self.__name__})
            if name[0].isupper()
            else Placeholder(full_name)
        )
        setattr(self, name, value)
        return value


def cdiv(number, divisor):
    """The quotient rounded up."""
    return -(-number // divisor)


def next_power_of_2(number):
    """The smallest power of 2 that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()


class AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the absent modules last, when nothing real has their name."""

    def find_spec(self, fullname, path=None, target=None):
        """A spec for an absent module, else None."""
        if fullname.partition(".")[0] in HIDDEN or fullname.startswith(PARTLY):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        """An empty module whose names come as they are asked for."""
        return AbsentModule(spec.name)

    def exec_module(self, module):
        """Gives triton the few names that are used while modules load."""
        if module.__name__ == "triton":
            module.__version__ = "3.0.0"
            module.cdiv = cdiv
            module.next_power_of_2 = next_power_of_2
            module.Config = Placeholder("triton.Config")
