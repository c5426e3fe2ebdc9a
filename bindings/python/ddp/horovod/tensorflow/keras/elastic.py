"""Elastic jobs of Keras. ddprun starts them with --min-ranks."""
# mypy: ignore-errors
# TensorFlow may not be there.
from tensorflow import keras as _keras

from ..._elastic import ObjectState, State, run
from ..._keras_elastic import TensorFlowKerasState as KerasState, elastic_callbacks_of as _callbacks_of

__all__ = ["CommitStateCallback", "KerasState", "ObjectState", "State", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

_made = _callbacks_of(_keras.callbacks.Callback)
CommitStateCallback = _made["CommitStateCallback"]
UpdateBatchStateCallback = _made["UpdateBatchStateCallback"]
UpdateEpochStateCallback = _made["UpdateEpochStateCallback"]
