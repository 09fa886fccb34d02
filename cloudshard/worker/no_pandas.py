"""Keeps pyarrow from importing pandas before anybody wants it.

At its first conversion of Python values pyarrow imports pandas if it is installed, to recognise its types: 0.3 s of CPU for every process
of every run, needed by few. Here pyarrow finds none at that moment, and is told when somebody does import pandas: from then on it
recognises Series and frames as ever. ``to_pandas`` and ``from_pandas`` import pandas themselves and need no telling.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def postpone_pandas() -> None:
    """Call once pyarrow is imported and before it converts anything. No effect where pandas is there already."""
    import pyarrow as pa

    if "pandas" in sys.modules:
        return
    refuser = _Refuser()
    sys.meta_path.insert(0, refuser)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(refuser)
    sys.meta_path.insert(0, _Announcer())


class _Refuser(MetaPathFinder):
    """Says that there is no pandas, for the one look that pyarrow takes."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("not wanted yet", name=name)
        return None


class _Announcer(MetaPathFinder):
    """Finds pandas where it is, and has pyarrow told when it has been imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pandas":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader)
        return spec


class _Then(Loader):
    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        import pyarrow as pa

        pa.lib._pandas_api.pd  # noqa: B018 - the look that counts: it finds pandas in sys.modules
