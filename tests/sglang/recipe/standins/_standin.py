"""A package whose every name imports, for code that a CPU server loads but never runs.

``install("pkg")`` turns the module being imported into such a package: ``import pkg.a.b``, ``from pkg.a import anything`` and chains
of attributes all work. Calling a name raises NotImplementedError, unless `lenient`: then calls, decoration and indexing give another
placeholder. Names that the module defines itself win.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types


class Placeholder(type):
    """The type of every name; a class, so that it can be subclassed, decorated with and put into annotations."""

    lenient: bool

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return make(f"{cls.__name__}.{name}", cls.lenient)

    def __call__(cls, *args, **keywords):
        if not cls.lenient:
            raise NotImplementedError(f"stand-in only, not the real thing: {cls.__name__}")
        return make(cls.__name__ + "()", True)

    def __getitem__(cls, item):
        return make(cls.__name__ + "[]", cls.lenient)

    def __iter__(cls):
        return iter(())


def make(name: str, lenient: bool) -> Placeholder:
    """A placeholder of that name."""
    return Placeholder(name, (), {"lenient": lenient})


class _Module(types.ModuleType):
    _lenient = False

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = make(f"{self.__name__}.{name}", self._lenient)
        setattr(self, name, made)
        return made


class _LenientModule(_Module):
    _lenient = True


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, prefix: str, kind: type[_Module]) -> None:
        self.prefix, self.kind = prefix, kind

    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith(self.prefix):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return self.kind(spec.name)

    def exec_module(self, module):
        pass


def install(name: str, lenient: bool = False) -> None:
    """Turn the module `name`, which is being imported, into a package of placeholders."""
    kind = _LenientModule if lenient else _Module
    module = sys.modules[name]
    module.__path__ = []
    module.__class__ = kind
    sys.meta_path.append(_Finder(name + ".", kind))
