"""numpy, pyarrow and what stands on it, imported when something of them is first asked for.

A program that sends and pops single messages needs no columns; importing these took a third of the time of ``import rmqstore`` and half
of its memory. Names of a late module in a type alias or a default would import it at once, so those stand as texts.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["np", "pa", "pc", "schemas"]


class _LateModule(ModuleType):
    """Stands for a module of its name; holds all that the module has from the first question on."""

    def __getattr__(self, name: str) -> object:
        module = import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqstore import schemas
else:
    np, pa, pc, schemas = map(_LateModule, ("numpy", "pyarrow", "pyarrow.compute", "rmqstore.schemas"))
