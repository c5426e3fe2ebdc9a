"""libddp's messages in Python's words: they name functions and constants of C.

SWIG's module knows every such name, and the classes of this package say which of their methods calls which function.
"""
from __future__ import annotations

import functools
import re
import sys
from types import CodeType, ModuleType
from typing import Dict, Iterator, Optional

from . import _ddp

_NAME = re.compile(r"\b(?:ddp|DDP)_\w+(?:\(\))?")
_FIELD = re.compile(r"\b(?:options|desc|group)->(?:flags: )?(\w+)")
#: Constants that are flags of a class or function: its keyword arguments.
_FLAGS = ("DDP_CONTEXT_", "DDP_GROUP_", "DDP_PARAM_", "DDP_STORE_")
_OTHER_FLAGS = {"DDP_CONTEXT_NO_BUFFER_BROADCAST": "broadcast_buffers=False", "DDP_PUT_ADD": "add=True"}
_CLASSES = ("context.Context", "context_hooks.HookMethods", "context_devices.DeviceMethods", "context_shards.ShardMethods",
            "group.Group", "work.Work", "store.Store", "averager.Averager", "optimizer.Optimizer", "elastic.Elastic", "bucket.Bucket")


def in_python(message: str) -> str:
    """The message with Python's names. Environment variables keep theirs."""
    return _NAME.sub(lambda found: _word(found[0]), _FIELD.sub(r"\1", message))


def _word(name: str) -> str:
    bare = name[:-2] if name.endswith("()") else name
    if not hasattr(_ddp, bare):
        return name
    if bare.startswith("ddp_"):
        hook = re.fullmatch(r"ddp_use_([a-z]+)", bare)
        return _methods().get(bare) or (f'Context.use_hook("{hook[1]}")' if hook else bare[len("ddp_"):])
    if bare in _OTHER_FLAGS:
        return _OTHER_FLAGS[bare]
    for prefix in _FLAGS:
        if bare.startswith(prefix):
            flag = bare[len(prefix):].lower()
            return f"{flag[3:]}=False" if flag.startswith("no_") else f"{flag}=True"
    if bare.startswith("DDP_REDUCTION_"):
        return f'reduction="{bare[14:].lower()}"'
    if bare.startswith("DDP_OWNER_"):
        return f'"{bare[10:].lower()}"'
    if bare.startswith("DDP_OUTER_"):
        return f'"{bare[10:].lower()}"'
    if bare.startswith("DDP_ERROR_"):
        known: Dict[int, type] = getattr(_module("_errors"), "_BY_STATUS", {})
        return known[getattr(_ddp, bare)].__name__ if getattr(_ddp, bare) in known else bare
    if bare.startswith("DDP_DEVICE_"):
        return bare[len("DDP_DEVICE_"):]
    if bare == "DDP_OK" or bare.startswith("DDP_BACKEND_"):
        return name
    return bare[len("DDP_"):].lower()


def _module(name: str) -> Optional[ModuleType]:
    """A module of this package, if it is loaded: they use this one, and not the other way round."""
    return sys.modules.get(f"{__package__}.{name}")


@functools.lru_cache(maxsize=None)
def _methods() -> Dict[str, str]:
    """By function of C, the public method that calls it; if several do, the one that has its name."""
    found: Dict[str, str] = {}
    for path in _CLASSES:
        module, name = path.split(".")
        kind = getattr(_module(module), name, None)
        shown = "Context" if name.endswith("Methods") else name
        for method in getattr(kind, "__annotations__", {}):  # Context.grad_ready goes straight to C
            if hasattr(_ddp, f"ddp_{method}"):
                found[f"ddp_{method}"] = f"{shown}.{method}"
        for method, body in vars(kind).items() if kind else ():
            body = getattr(body, "fget", None) or getattr(body, "__func__", body)
            code = getattr(getattr(body, "__wrapped__", body), "__code__", None)
            if code is None or method.startswith("_") and method != "__init__":
                continue
            for called in _names(code):
                if not called.startswith("ddp_"):
                    continue
                text = shown if method == "__init__" else f"{shown}.{method}"
                if called not in found or called.endswith(f"_{method}"):
                    found[called] = text
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
