"""Keras 3, on TensorFlow, JAX or PyTorch: model.fit on several ranks.

    import ddp.keras

    model.compile(optimizer, loss)
    ddp.keras.distribute(model)          # ddprun -n 2 python3 train.py
    model.fit(x, y)                      # with this rank's samples; every rank starts from rank 0's weights

docs/keras.md says what fit does then.
"""
# mypy: ignore-errors
# Keras may not be there.
from __future__ import annotations

import contextlib
import inspect

import keras
import numpy

from . import _keras_state as state
from ._errors import InvalidStateError, MismatchError, UnevenInputsError, UnsupportedError
from ._keras_gradients import Gradients
from .group import Group

__all__ = ["distribute"]


def distribute(model, group=None):
    """From now on model.fit trains on all ranks of a group, each with its own samples, and all ranks have the same weights. Returns the model.

    model: a keras.Model, compiled or not. group: a ddp.Group; None: that of the job, which is created here, on all ranks. fit is collective from
    now on, and called on the thread of the group's collectives.

    Each step applies the gradient of all ranks' samples together: the mean over ranks, weighted by the numbers of samples. A rank with fewer
    batches in an epoch takes part in the steps of the others. At the end of an epoch the logs are those of all ranks, and ranks compare their
    weights.

    fit raises UnsupportedError or InvalidStateError for a model whose gradients it cannot average, MismatchError where models, optimizers or
    weights differ, and UnevenInputsError where ranks train other numbers of epochs: on all ranks, which may go on. Any other exception on one
    rank breaks the group, and fit raises an Error on the others.
    """
    if getattr(model, "_ddp_parallel", None) is not None:
        raise InvalidStateError("model: it is distributed already")
    if not isinstance(model, keras.Model):
        raise TypeError(f"model: a keras.Model is expected, not {type(model).__name__}")
    if getattr(keras.config, "is_nnx_enabled", lambda: False)():
        raise UnsupportedError("model: Keras makes models of Flax here (KERAS_NNX_ENABLED), and ddp.keras is for those of Keras")
    model._ddp_parallel = _Parallel(model, group)
    return model


def _backend_class():
    name = keras.backend.backend()
    if name == "tensorflow":
        from ._keras_tensorflow import Backend
    elif name == "jax":
        from ._keras_jax import Backend
    elif name == "torch":
        from ._keras_torch import Backend
    else:
        raise UnsupportedError(f"Keras computes with {name}, and ddp.keras is for TensorFlow, JAX and PyTorch: set KERAS_BACKEND")
    return Backend


class _Parallel:
    """A model that trains on several ranks. It replaces methods of the model and of its optimizer, in these objects only: a model that is
    saved, cloned or loaded is a plain one."""

    def __init__(self, model, group):
        self._model = model
        self._backend = _backend_class()(self)
        self.group = group if group is not None else Group()
        self.gradients = None   # from the first fit on
        self.weight = None      # of this rank's batch in the step that is traced, or runs
        self._failure = None    # in a step
        self._is_refused = False  # by all ranks, before the first step
        self._optimizer = None
        self._by_sample_weight = False  # a loss is divided by the sum of sample weights
        self._inside = False    # an apply() calls another one
        self.is_own_step = type(model).train_step.__module__.split(".")[0] == "keras"  # Keras's, which applies each gradient as it was computed
        self._fit, self._compile, self._train_step = model.fit, model.compile, model.train_step
        model.fit, model.compile = self._run_fit, self._run_compile
        self._backend.wrap(model)
        if model.compiled:
            self._take_optimizer()

    # WHAT THE MODEL CALLS

    def _run_compile(self, *arguments, **options):
        self._compile(*arguments, **options)
        self._take_optimizer()

    def _run_fit(self, *arguments, **options):
        bound = inspect.signature(self._fit).bind(*arguments, **options)
        callbacks = bound.arguments.get("callbacks") or []
        if isinstance(callbacks, keras.callbacks.CallbackList):
            raise TypeError("callbacks: give a list of callbacks, not a CallbackList")
        callbacks = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        bound.arguments["callbacks"] = [_Callback(self), *callbacks]
        self._failure, self._is_refused = None, False
        try:
            return self._fit(*bound.args, **bound.kwargs)
        except BaseException as error:
            cause, self._failure = self._failure or error, None
            if not self._is_refused and not isinstance(cause, (MismatchError, UnevenInputsError)):  # those are raised on all ranks
                self.group.abort(f"model.fit on rank {self.group.rank} raised {type(cause).__name__}: {cause}")
            if cause is not error:
                raise cause from error
            raise

    def _run_train_step(self, *arguments):
        self.weight = self._weight_of(arguments[-1])
        return self._backend.step(self._train_step, self._apply, *arguments)

    def _take_optimizer(self):
        """Keras has made the model's optimizer, or put it into another one."""
        model, optimizer = self._model, self._model.optimizer
        model.train_step = lambda *arguments: self._run_train_step(*arguments)  # a new function: JAX would know an old one
        model.train_function = None
        if optimizer is self._optimizer:
            return
        self._optimizer, self._apply, stateless_apply = optimizer, optimizer.apply, optimizer.stateless_apply

        def averaged(apply, gradients, variables):
            if self._inside:
                return apply(gradients, variables)
            self._inside = True
            try:
                return self._backend.averaged(apply, list(gradients), variables)
            finally:
                self._inside = False

        def apply(grads, trainable_variables=None):
            return averaged(self._apply, grads, list(model.trainable_variables if trainable_variables is None else trainable_variables))

        def apply_stateless(optimizer_variables, grads, trainable_variables):
            return averaged(lambda means, _: stateless_apply(optimizer_variables, means, trainable_variables), grads, model.trainable_variables)

        optimizer.apply = apply
        optimizer.stateless_apply = apply_stateless

    # WHAT THE BACKEND CALLS

    def indices_of(self, variables):
        """The numbers of variables among those of the gradients."""
        if self.gradients is None:
            raise InvalidStateError("apply: gradients are averaged in model.fit only, and it has not been called yet")
        for variable in variables:
            if id(variable) not in self._indices:
                raise InvalidStateError(f"apply: {getattr(variable, 'path', variable)} was not trained when fit began. Build all layers before, and compile the "
                                        "model again after a change of what is trained")
        return [self._indices[id(variable)] for variable in variables]

    @contextlib.contextmanager
    def noted_failure(self):
        """Keeps an exception for fit: frameworks raise others in its place."""
        try:
            yield
        except BaseException as error:
            self._failure = self._failure or error
            raise

    # WHAT THE CALLBACK CALLS

    def start(self):
        """Before the first step of fit: all ranks get rank 0's values."""
        model, refusal = self._model, None
        try:
            self._require_supported()
        except Exception as error:  # pylint: disable=broad-except # raised below
            refusal = error
        for rank, refused in enumerate(state.gathered(self.group, int(refusal is not None))):
            if refused:
                self._is_refused = True
                raise refusal or UnsupportedError(f"model: rank {rank} cannot train it on several ranks, and its own exception says why", rank=rank)
        state.require_same(self.group, model)
        variables = state.trained(model)
        if self.gradients is None or self.gradients.variables != variables:
            self.gradients = Gradients(self.group, variables)
        self._indices = {id(variable): index for index, variable in enumerate(model.trainable_variables)}
        self._backend.started(model)
        state.send(self.group, [*state.learned(model), *state.kept(model)], 0)

    def agree_on_epoch(self, goes_on):
        """At the begin of an epoch, and at the end of fit."""
        self.gradients.steps = 0
        everyone = state.gathered(self.group, int(goes_on))
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                begins, ends = (rank, 0) if theirs else (0, rank)
                raise UnevenInputsError(f"fit: rank {ends} has ended, and rank {begins} begins another epoch. Give all ranks the same epochs, and let "
                                        "callbacks stop the training by the logs, which are the same on all ranks", rank=ends)

    def end_epoch(self):
        """After the last step of an epoch on this rank. Returns when all ranks have come here."""
        model = self._model
        self._backend.settle([*state.learned(model), *state.kept(model)])
        self.gradients.context.join()
        everyone = state.gathered(self.group, [self.gradients.steps, int(model.stop_training)])
        steps = list(everyone[:, 0])
        last = max(rank for rank, count in enumerate(steps) if count == max(steps))
        if min(steps) != max(steps):
            state.send(self.group, [*state.learned(model), *state.kept(model)], last)
        else:
            state.send(self.group, state.kept(model), 0)
        state.require_equal(self.group, model)
        if any(everyone[:, 1]):
            model.stop_training = True

    def average(self, logs, samples, validated):
        """Overwrites the logs of an epoch with means over ranks. samples, validated: of this rank."""
        names = sorted(logs)
        counts = [float(validated if name.startswith("val_") else samples) for name in names]
        values = [[count * logs[name], count] for name, count in zip(names, counts)]
        sums = numpy.array(values, numpy.float64).reshape(-1)
        if not len(sums):
            return
        self.group.allreduce(sums)
        for name, (total, count) in zip(names, sums.reshape(-1, 2)):
            logs[name] = float(total / count) if count else float("nan")

    def samples(self):
        """The number of samples in the model's loss since it was reset."""
        for metric in self._model.metrics:
            if metric.name == "loss" and isinstance(metric, keras.metrics.Mean):
                return float(keras.ops.convert_to_numpy(metric.count))
        return 1.0

    def _weight_of(self, data):
        """The weight of a batch in the mean of gradients: what its loss is divided by."""
        x, _, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if self._by_sample_weight and sample_weight is not None:
            found = keras.tree.flatten(sample_weight)
            if len(found) != 1:
                raise UnsupportedError("loss: with reduction=\"mean_with_sample_weight\" ddp.keras takes one array of sample weights, not one for each output")
            return keras.ops.sum(keras.ops.cast(found[0], "float32"))
        return keras.ops.shape(next(each for each in keras.tree.flatten(x) if each is not None))[0]

    def _require_supported(self):
        """Refuses what would give other numbers than one process. Builds the optimizer."""
        model = self._model
        self._backend.require_supported(model)
        self._require_mean()
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if not model.trainable_variables:
            raise UnsupportedError("model: it has no trainable variables")
        if any(getattr(variable, "overwrite_with_gradient", False) for variable in model.trainable_variables):
            raise UnsupportedError("model: it has variables of float8 that take their gradients as values, of which a mean is not the right one")

    def _require_mean(self):
        """Refuses losses whose gradient for all samples is no mean of those of the ranks."""
        reductions = {getattr(loss, "reduction", "sum_over_batch_size") for loss in keras.tree.flatten(self._model.loss) if loss is not None}
        self._by_sample_weight = "mean_with_sample_weight" in reductions
        if reductions & {"sum", "none", None}:
            raise UnsupportedError("loss: a sum over a batch has no mean over ranks that would be right for losses of layers, too. Use "
                                   "reduction=\"sum_over_batch_size\"")
        if self._by_sample_weight and len(reductions) > 1:
            raise UnsupportedError("loss: some losses are divided by the sum of sample weights and some by the number of samples, and ddp.keras weights "
                                   "a rank by one of both. Give all losses the same reduction")


class _Callback(keras.callbacks.Callback):
    """The first callback of fit."""

    def __init__(self, parallel):
        super().__init__()
        self._parallel = parallel
        self._is_open = False  # an epoch that has not ended
        self._samples = self._validated = 0.0

    def on_train_begin(self, logs=None):
        self._parallel.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._parallel.agree_on_epoch(True)
        self._is_open, self._validated = True, 0.0

    def on_test_begin(self, logs=None):
        self._end_epoch()

    def on_test_end(self, logs=None):
        self._validated = self._parallel.samples()

    def on_epoch_end(self, epoch, logs=None):
        self._end_epoch()
        self._parallel.average(logs, self._samples, self._validated)

    def on_train_end(self, logs=None):
        self._parallel.agree_on_epoch(False)

    def _end_epoch(self):
        if self._is_open:
            self._is_open = False
            self._samples = self._parallel.samples()
            self._parallel.end_epoch()
