"""DistributedOptimizer: an optimizer of PyTorch whose gradients are those of all ranks.

Each gradient is a request by name, as in Horovod, and not a part of a bucket of ddp.Context: parameters may come in any order, be
used by some ranks only, or stop needing gradients between two steps, and nothing is fixed when the optimizer is made.
"""
# mypy: ignore-errors
# PyTorch may not be there.
from __future__ import annotations

import contextlib
import warnings
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch

from .._calls import broadcast_object
from .._job import ProcessSet, global_process_set, size
from .._numbers import ReduceOp
from .compression import Compression
from .mpi_ops import Adasum, Average, allreduce_async_, grouped_allreduce_async_, sparse_allreduce_async, synchronize

Groups = Union[int, Sequence[Sequence[torch.Tensor]], None]
NamedParameters = Optional[Iterable[Tuple[str, torch.Tensor]]]


class _Pending:
    """Gradients on their way: a handle for the tensors that travel, and how each becomes the gradient of its parameter."""

    def __init__(self, params: Sequence[torch.Tensor], handle: Any, contexts: Sequence[Any], sparse: bool = False):
        self.params, self.handle, self.contexts, self.sparse = params, handle, contexts, sparse


def _names(optimizer: torch.optim.Optimizer, named_parameters: NamedParameters) -> Dict[torch.Tensor, str]:
    """The name of each parameter of the optimizer."""
    if named_parameters is None:
        return {param: f"allreduce.noname.{i}.{j}"
                for i, group in enumerate(optimizer.param_groups) for j, param in enumerate(group["params"])}
    listed = list(named_parameters)
    if any(not isinstance(each, tuple) for each in listed):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter), usually produced by model.named_parameters().")
    names = [name for name, _ in listed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    found = {param: name for name, param in listed}
    unnamed = [(i, j) for i, group in enumerate(optimizer.param_groups) for j, param in enumerate(group["params"]) if param not in found]
    if unnamed:
        places = ", ".join(f"parameter {j} of group {i}" for i, j in unnamed)
        raise ValueError(f"named_parameters was specified, but one or more model parameters were not named: {places}")
    return found


class _Gradients:
    """The gradients of an optimizer: it listens to autograd, and starts the reduction of each when it is complete."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: Dict[torch.Tensor, str], compression: Any, passes: int, op: ReduceOp,
                 predivide: float, groups: Groups, sparse_as_dense: bool, process_set: ProcessSet):
        self.passes = passes
        self._names, self._compression, self._op, self._predivide = names, compression, op, predivide
        self._sparse_as_dense, self._process_set = sparse_as_dense, process_set
        self._params = [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
        self._listeners: List[Any] = []
        self._left: Dict[torch.Tensor, int] = {}  # backward passes until a gradient is complete
        self._pending: Dict[torch.Tensor, _Pending] = {}
        self._groups = self._grouped(groups)
        self.reset()
        for param in self._params:
            node = param.expand_as(param).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, param=param: self._arrived(param))
            self._listeners.append(node)

    def _grouped(self, groups: Groups) -> Dict[torch.Tensor, Tuple[torch.Tensor, ...]]:
        """The group of each parameter, in the same order on all ranks."""
        if groups is None:
            return {}
        order = {name: place for place, name in enumerate(broadcast_object([self._names[param] for param in self._params],
                                                                           process_set=self._process_set))}
        params = sorted(self._params, key=lambda param: order[self._names[param]])
        made: List[Tuple[torch.Tensor, ...]]
        if isinstance(groups, int):
            most = -(-len(params) // groups)
            made = [tuple(params[begin:begin + most]) for begin in range(0, len(params), most)]
        else:
            known = set(params)
            made = [tuple(param for param in group if param in known) for group in groups]
            taken = {param for group in made for param in group}
            made += [(param,) for param in params if param not in taken]
        return {param: group for group in made for param in group}

    def reset(self) -> None:
        """As before the first backward pass."""
        self._pending.clear()
        self._left = {param: self.passes for param in self._params}

    @property
    def under_way(self) -> bool:
        """Whether a gradient came since the last synchronize()."""
        return any(left < self.passes for left in self._left.values())

    def _arrived(self, param: torch.Tensor) -> None:
        """Autograd has added to a gradient."""
        if self._left[param] <= 0:
            raise AssertionError("Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                                 "backward_passes_per_step to accumulate gradients locally.")
        self._left[param] -= 1
        group = self._groups.get(param, (param,))
        if all(self._left[each] == 0 for each in group):
            self._start(group)

    def _start(self, group: Sequence[torch.Tensor]) -> None:
        """Starts the reduction of gradients. A rank without a gradient gives zeros, because others may have one."""
        for param in group:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        gradients = [param.grad for param in group]
        name = self._names[group[0]]
        if len(group) == 1 and gradients[0].is_sparse and not self._sparse_as_dense:
            handle = sparse_allreduce_async(gradients[0], name, self._op, self._process_set)
            pending = _Pending(group, handle, [None], sparse=True)
        else:
            dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
            compressed = [self._compression.compress(gradient) for gradient in dense]
            tensors, factors = [tensor for tensor, _ in compressed], (1 / self._predivide, self._predivide)
            if len(group) == 1:
                handle = allreduce_async_(tensors[0], None, name, self._op, *factors, self._process_set)
            else:
                handle = grouped_allreduce_async_(tensors, None, "group." + name, self._op, *factors, self._process_set)
            pending = _Pending(group, handle, [ctx for _, ctx in compressed])
        for param in group:
            self._pending[param] = pending

    def synchronize(self) -> None:
        """Waits until every .grad is that of all ranks."""
        for param in self._params:
            if param not in self._pending:
                self._start(self._groups.get(param, (param,)))
        try:
            for pending in dict.fromkeys(self._pending.values()):
                result = synchronize(pending.handle)
                results = result if len(pending.params) > 1 else [result]
                for param, reduced, ctx in zip(pending.params, results, pending.contexts):
                    self._take(param, reduced if pending.sparse else self._compression.decompress(reduced, ctx))
        finally:
            self.reset()

    def _take(self, param: torch.Tensor, reduced: torch.Tensor) -> None:
        gradient = param.grad
        assert gradient is not None
        if reduced is gradient:
            return
        if gradient.is_sparse:
            param.grad = reduced if reduced.is_sparse else reduced.to_sparse()
        else:
            with torch.no_grad():
                gradient.copy_(reduced)


class _DistributedOptimizer:
    """The methods that an optimizer gets in addition to those of its class."""

    _gradients: Optional[_Gradients]
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Waits until every .grad is that of all ranks, for example to clip them. Then step() under skip_synchronize()."""
        if self._gradients is not None:
            self._gradients.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() does not call synchronize() here, because the program has."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Updates the parameters with the gradients of all ranks. closure: computes the loss and its gradients, which then travel."""
        if closure is not None:
            def closed() -> Any:
                loss = closure()
                self.synchronize()
                return loss

            result = super().step(closed)
            self._synchronized = False
            return result
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(): "
                              "gradients travel twice", stacklevel=2)
            self.synchronize()
        self._synchronized = False
        return super().step()

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """As the optimizer's own; not between a backward pass and step()."""
        if self._gradients is not None and self._gradients.under_way:
            raise AssertionError("optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                                 "optimizer.synchronize(). This is prohibited as it can cause a race condition.")
        super().zero_grad(*arguments, **options)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """So many backward passes add to a gradient before it travels."""
        if self._gradients is not None:
            self._gradients.passes = passes
            self._gradients.reset()

    def load_state_dict(self, *arguments: Any, **options: Any) -> None:
        """As the optimizer's own. Gradients under way are forgotten."""
        if self._gradients is not None:
            self._gradients.reset()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(*arguments, **options)


class _AdasumOptimizer:
    """The methods that an optimizer gets with op=Adasum: each rank makes its own step, and the steps are added."""

    _parameter_names: Dict[torch.Tensor, str]
    _compression: Any
    param_groups: List[Dict[str, Any]]

    def synchronize(self) -> None:
        """Nothing: gradients stay on their rank."""

    def skip_synchronize(self) -> Any:
        """Not with Adasum."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Nothing: the steps travel, and step() is one however many backward passes came before."""

    def step(self, closure: Any = None) -> Any:
        """Makes this rank's step and adds those of all ranks with Adasum."""
        params = [param for group in self.param_groups for param in group["params"] if param.requires_grad]
        before = [param.detach().clone() for param in params]
        loss = super().step(closure)
        under_way = []
        for param, start in zip(params, before):
            compressed, ctx = self._compression.compress(param.detach() - start)
            under_way.append((allreduce_async_(compressed, None, self._parameter_names[param], Adasum), ctx))
        with torch.no_grad():
            for param, start, (handle, ctx) in zip(params, before, under_way):
                param.copy_(start + self._compression.decompress(synchronize(handle), ctx))
        return loss


def _checked_groups(groups: Groups, num_groups: int) -> Groups:
    if num_groups:
        warnings.warn("num_groups has been replaced by groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if isinstance(groups, (list, tuple)):
        members = [param for group in groups for param in group]
        if any(not isinstance(param, torch.Tensor) for param in members):
            raise ValueError("groups must consist of torch.Tensor.")
        if len({id(param) for param in members}) != len(members):
            raise ValueError("A parameter can only appear once in groups.")
    elif groups is not None and not (isinstance(groups, int) and groups >= 0):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    return groups or None


def DistributedOptimizer(optimizer: Any, named_parameters: NamedParameters = None, compression: Any = Compression.none,
                         backward_passes_per_step: int = 1, op: int = Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: Groups = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> Any:
    """An optimizer that works on the parameters and the state of `optimizer`, of a class derived from its class, whose step() waits for
    the gradients of all ranks. Their reductions start in the backward pass, each when its gradient is complete.

    named_parameters: model.named_parameters(). The names say which gradients of ranks belong together.
    backward_passes_per_step: so many backward passes add to a gradient before it travels.
    op: Average, Sum, Min, Max or Product of gradients. With Adasum each rank makes its own step, and the steps are added.
    gradient_predivide_factor: with Average, divides by it before the sum, and multiplies the mean by it.
    groups: gradients that travel together: so many groups, or lists of parameters.
    sparse_as_dense: sparse gradients become dense ones on their way.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    groups = _checked_groups(groups, num_groups)
    names = _names(optimizer, named_parameters)
    adasum = op == Adasum and size() > 1
    if adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    bases: Any = (_AdasumOptimizer if adasum else _DistributedOptimizer, optimizer.__class__)
    made: Any = type(optimizer.__class__.__name__, bases, {"__module__": __name__})
    wrapped = made.__new__(made)
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})  # a scheduler's own step
    wrapped._parameter_names = names
    if adasum:
        wrapped._compression = compression
        return wrapped
    wrapped._synchronized, wrapped._should_synchronize, wrapped._gradients = False, True, None
    if size() > 1 and process_set.included():
        wrapped._gradients = _Gradients(optimizer, names, compression, backward_passes_per_step, ReduceOp(op), gradient_predivide_factor,
                                        groups, sparse_as_dense, process_set)
    return wrapped
