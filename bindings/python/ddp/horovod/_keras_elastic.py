"""States and callbacks of elastic jobs for TensorFlow and Keras."""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

from typing import Any, Callable, Dict, List

import numpy as np

from ._elastic import ObjectState
from ._keras import broadcast_weights, variables_of


class VariablesState(ObjectState):
    """Variables that `find` lists, and Python objects, which are attributes of the state."""

    def __init__(self, find: Callable[[], List[Any]], **objects: Any):
        super().__init__(**objects)
        self._find = find
        self._keep()

    def _keep(self) -> None:
        self._values = [np.array(variable.numpy()) for variable in self._find()]

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._find(), self._values):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_weights(self._find(), 0)
        super().sync()
        self._keep()


class TensorFlowState(VariablesState):
    """Variables of TensorFlow, and Python objects."""

    def __init__(self, variables: Any, **objects: Any):
        listed = list(variables)
        super().__init__(lambda: listed, **objects)


class TensorFlowKerasState(VariablesState):
    """A model of Keras with its optimizer, and Python objects. The model and the optimizer must have their variables: call model.fit with
    one step before, or model.build and optimizer.build."""

    def __init__(self, model: Any, optimizer: Any = None, **objects: Any):
        if not model.built:
            raise ValueError("the model must be built before: call model.build(input_shape)")
        self.model, self.optimizer = model, optimizer if optimizer is not None else model.optimizer
        super().__init__(lambda: [*self.model.weights, *(variables_of(self.optimizer) if self.optimizer is not None else ())], **objects)


def elastic_callbacks_of(base: Any) -> Dict[str, Any]:
    """The callbacks, derived from Callback of one of the packages of Keras."""

    class CommitStateCallback(base):
        """Commits the state after every batches_per_commit batches, and after each epoch. Put it last."""

        def __init__(self, state: Any, batches_per_commit: int = 1):
            super().__init__()
            self._state, self._every, self._left = state, batches_per_commit, batches_per_commit

        def on_train_begin(self, logs: Any = None) -> None:
            """Counts from here."""
            self._left = self._every

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Commits."""
            self._left -= 1
            if self._left == 0:
                self._left = self._every
                self._state.commit()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Commits."""
            self._state.commit()

    class UpdateBatchStateCallback(base):
        """Keeps the number of the batch in state.batch."""

        def __init__(self, state: Any):
            super().__init__()
            self._state = state

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Sets it."""
            self._state.batch = batch

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Sets it to 0."""
            self._state.batch = 0

    class UpdateEpochStateCallback(base):
        """Keeps the number of finished epochs in state.epoch, with those before this call of fit."""

        def __init__(self, state: Any):
            super().__init__()
            self._state, self._before = state, state.epoch

        def on_train_begin(self, logs: Any = None) -> None:
            """Counts from here."""
            self._before = self._state.epoch

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Sets it."""
            self._state.epoch = self._before + epoch + 1

    return {each.__name__: each for each in (CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback)}
