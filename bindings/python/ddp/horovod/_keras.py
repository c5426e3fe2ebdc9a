"""DistributedOptimizer and the callbacks for Keras 3 on TensorFlow, and for tf_keras."""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import numpy as arrays
from ._gradients import Accumulator, Gradients
from ._job import rank, size


class _Keras3:
    """The methods that an optimizer of Keras 3 gets."""

    _horovod: Gradients
    _horovod_passes: Tuple[int, bool]  # backward passes, and whether their mean travels

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """As the optimizer's own, with the gradients of all ranks."""
        inner = super().apply
        if self._horovod_passes[0] == 1:
            inner(self._horovod.reduce(grads), trainable_variables)
            return
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:
            self.build(variables)
            self.built = True
        _accumulator(self, variables).add(grads, lambda sums: inner(self._horovod.reduce(sums), variables))


class _Keras2:
    """The methods that an optimizer of tf_keras gets."""

    _horovod: Gradients
    _horovod_passes: Tuple[int, bool]

    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        """As the optimizer's own, with the gradients of all ranks."""
        inner = super().apply_gradients
        gradients, variables = map(list, zip(*grads_and_vars))
        if self._horovod_passes[0] == 1:
            return inner(list(zip(self._horovod.reduce(gradients), variables)), *arguments, **options)
        self.build(variables)

        def apply(sums: Sequence[Any]) -> None:
            inner(list(zip(self._horovod.reduce(sums), variables)), *arguments, **options)

        return _accumulator(self, variables).add(gradients, apply)


def distributed_optimizer(optimizer: Any, gradients: Gradients, passes: int, average_passes: bool) -> Any:
    """The same optimizer, now of a class derived from its class that reduces gradients before it applies them."""
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if not hasattr(optimizer, "apply_gradients") or not hasattr(optimizer, "learning_rate"):
        raise TypeError(f"DistributedOptimizer: an optimizer of Keras is expected, not {type(optimizer).__name__}; programs with "
                        "tf.compat.v1 optimizers use hvd.allreduce or hvd.DistributedGradientTape")
    kind = type(optimizer)
    if issubclass(kind, (_Keras3, _Keras2)):
        raise ValueError("DistributedOptimizer: the optimizer is one already")
    mixin = _Keras3 if hasattr(kind, "apply") else _Keras2
    # the name and the module are those of the optimizer's class, so that a saved model loads where libddp is not
    # and a copy that from_config() makes reduces gradients, too
    members = {"__module__": kind.__module__, "_horovod": gradients, "_horovod_passes": (passes, average_passes)}
    optimizer.__class__ = type(kind.__name__, (mixin, kind), members)
    return optimizer


def _accumulator(optimizer: Any, variables: Sequence[Any]) -> Accumulator:
    """The sums of this optimizer, made when its variables are known."""
    found: Optional[Accumulator] = optimizer.__dict__.get("_horovod_sums")
    if found is None:
        found = optimizer.__dict__["_horovod_sums"] = Accumulator(*optimizer._horovod_passes)
        found.build(variables)
    return found


def broadcast_weights(weights: Sequence[Any], root_rank: int) -> None:
    """Overwrites variables with those of rank root_rank."""
    listed = list(weights)
    handles = [arrays.broadcast_async(np.asarray(variable.numpy()), root_rank) for variable in listed]
    for variable, handle in zip(listed, handles):
        variable.assign(arrays.synchronize(handle))


def variables_of(optimizer: Any) -> List[Any]:
    """The variables of an optimizer; a method in old versions."""
    found = optimizer.variables
    return list(found() if callable(found) and not isinstance(found, list) else found)


def callbacks_of(base: Any) -> Dict[str, Any]:
    """The callbacks, derived from Callback of one of the packages of Keras."""

    class BroadcastGlobalVariablesCallback(base):
        """Gives all ranks the variables of rank root_rank after the first batch, when the optimizer has made its own."""

        def __init__(self, root_rank: int, device: str = ""):
            super().__init__()
            del device
            self._root_rank, self._done = root_rank, False

        def set_model(self, model: Any) -> None:
            """Collectives are operations of Python's, which XLA does not compile."""
            super().set_model(model)
            if getattr(model, "jit_compile", None):
                model.jit_compile = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """After the first batch."""
            if not self._done:
                broadcast_weights(self.model.weights, self._root_rank)
                broadcast_weights(variables_of(self.model.optimizer), self._root_rank)
                self._done = True

    class MetricAverageCallback(base):
        """Makes the metrics of an epoch the means over ranks. Put it before callbacks that use them."""

        def __init__(self, device: str = ""):
            super().__init__()
            del device

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Overwrites the logs."""
            for name, value in sorted((logs or {}).items()):
                logs[name] = float(arrays.allreduce(np.array(value, np.float64), name=f"metric.{name}"))

    class LearningRateScheduleCallback(base):
        """Multiplies initial_lr by multiplier(epoch), or by multiplier ** (epoch - start_epoch), from start_epoch to before end_epoch.
        staircase: once an epoch; otherwise in each batch, with fractions of epochs. momentum_correction: not needed, because Keras
        compiles the momentum into the step, and taken because Horovod takes it."""

        def __init__(self, initial_lr: float, multiplier: Any, start_epoch: int = 0, end_epoch: Optional[int] = None,
                     staircase: bool = True, momentum_correction: bool = True, steps_per_epoch: Optional[int] = None):
            super().__init__()
            del momentum_correction
            self._initial_lr = initial_lr
            self._multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier**(epoch - start_epoch)
            self._begin, self._end, self._staircase = start_epoch, end_epoch, staircase
            self._steps, self._epoch = steps_per_epoch, 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Remembers the epoch."""
            self._epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            """Sets the learning rate."""
            if self._epoch < self._begin or (self._end is not None and self._epoch >= self._end):
                return
            if self._staircase:
                if batch == 0:
                    self._set(self._multiplier(self._epoch))
                return
            steps = self._steps or (self.params or {}).get("steps")
            if not steps:
                raise ValueError(f"{type(self).__name__}: the number of steps of an epoch is not known: give steps_per_epoch")
            self._set(self._multiplier(self._epoch + batch / steps))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Logs the learning rate."""
            if logs is not None:
                logs["lr"] = float(np.asarray(self.model.optimizer.learning_rate))

        def _set(self, factor: float) -> None:
            self.model.optimizer.learning_rate = self._initial_lr * factor

    class LearningRateWarmupCallback(LearningRateScheduleCallback):
        """Raises the learning rate from initial_lr / size to initial_lr in the first warmup_epochs epochs."""

        def __init__(self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
                     steps_per_epoch: Optional[int] = None, verbose: int = 0):
            def multiplier(epoch: float) -> float:
                steps = self._steps or (self.params or {}).get("steps")
                through = epoch + (1.0 / steps if steps else 0.0)  # the last batch has the whole rate
                return (through * (size() - 1) / warmup_epochs + 1) / size()

            super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
            self._verbose = verbose

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Says when it is over."""
            super().on_epoch_end(epoch, logs)
            if self._end is not None and epoch == self._end - 1 and self._verbose > 0 and rank() == 0:
                learning_rate = float(np.asarray(self.model.optimizer.learning_rate))
                print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {learning_rate:g}.")

    return {each.__name__: each for each in (BroadcastGlobalVariablesCallback, MetricAverageCallback, LearningRateScheduleCallback,
                                             LearningRateWarmupCallback)}
