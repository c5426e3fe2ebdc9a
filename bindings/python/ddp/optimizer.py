"""Optimizers for programs that have none (ddp/optimizer.h)."""
from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from . import _ddp
from ._arrays import count_of
from ._context_state import ContextState, Parameter
from ._ddp import Memory


class OptimizerState:
    """Numbers that an optimizer keeps for elements of a parameter: `count` of them, after `first` others; of "step", the count of
    updates, 1. replicated: all ranks have them. data: the numbers, which a program may read and write between steps:
    numpy.asarray(state.data) or torch.from_dlpack(state.data)."""

    param: Parameter
    first: int
    count: int
    replicated: bool
    data: Memory

    def __init__(self, param: Parameter, first: int, data: Memory, replicated: bool):
        self.param, self.first, self.data, self.replicated = param, first, data, replicated
        self.count = count_of(data.shape)

    def __repr__(self) -> str:
        return f"<ddp.OptimizerState of {self.param.name!r}: {self.count} elements from {self.first}>"


class Optimizer:
    """SGD, AdamW, LAMB or Muon for all parameters of a committed context. On all ranks.

        optimizer = ddp.Optimizer(ctx, "adamw", lr=3e-4, weight_decay=0.1)
        optimizer.set("weight_decay", 0, bias)         # of one parameter
        for step, batch in enumerate(batches):
            optimizer.set("lr", schedule(step))
            ...                                        # backward pass and ctx.finalize()
            optimizer.step()
            ctx.publish()                              # with shard=True

    name: "sgd", "adamw", "lamb" or "muon". options: numbers and bools, alike on all ranks; ddp/optimizer.h has those of each optimizer
    and their defaults. With shard=True each rank updates its own pieces, and has the state of those. Parameters are on the CPU.
    """

    def __init__(self, context: ContextState, name: str, **options: float):
        context._require_values("Optimizer")
        text = ",".join(f"{key}={_number(key, value)!r}" for key, value in options.items())
        self._handle = _ddp.ddp_optimizer_create(context, name, text)
        self._context = context
        self._handle.keep(context._handle)

    def set(self, key: str, value: float, param: Optional[int] = None) -> None:
        """Changes an option of a parameter, or of all, from the next step on: a learning rate, for example. Alike on all ranks."""
        self._call(_ddp.ddp_optimizer_set, -1 if param is None else param, key, _number(key, value))

    def step(self, scale: float = 1) -> None:
        """After finalize and on every rank: updates the values from the means, each multiplied by scale, such as 1 / the scale of the
        loss. With shard=True publish follows. After a step that all ranks skipped or discarded there is nothing to apply."""
        self._call(_ddp.ddp_optimizer_step, _number("scale", scale))

    def in_step(self, scale: float = 1) -> None:
        """With shard=True: from the next step on, updates each bucket in the step as soon as its means are there, and sends the
        values. step and publish are not called then; wait_value gives the new values. Until that or the end of the context
        libddp may write them at any time in a step."""
        self._call(_ddp.ddp_optimizer_in_step, _number("scale", scale))

    def state(self) -> Dict[str, Dict[str, OptimizerState]]:
        """This rank's state, by key and name of the parameter: state["exp_avg"]["w"]. The keys are "momentum_buffer", "exp_avg",
        "exp_avg_sq", "master" and "step". Context.save_shards and Context.load_shards take it: {"value": values, **optimizer.state()}."""
        owned = {}
        piece, found = _ddp.ddp_piece(), _ddp.ddp_optimizer_state()
        for index in range(max(0, _ddp.ddp_piece_count(self._context._handle))):
            _ddp.ddp_piece_get(self._context._handle, index, piece)
            owned[piece.param] = bool(piece.replicated)
        states: Dict[str, Dict[str, OptimizerState]] = {}
        for index in range(_ddp.ddp_optimizer_state_count(self._handle)):
            _ddp.ddp_optimizer_state_get(self._handle, index, found)
            param = self._context.parameters[found.param]
            data = Memory.at(found.data, found.dtype, (found.count,), self._handle, False, (found.device.kind, found.device.index))
            replicated = found.name == "step" or owned.get(found.param, True)  # without shards all ranks have all
            states.setdefault(found.name, {})[param.name] = OptimizerState(param, found.first, data, replicated)
        return states

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._handle.call_with([self._context], function, (self._handle, *arguments))


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what}: {value!r} is not a number") from None
