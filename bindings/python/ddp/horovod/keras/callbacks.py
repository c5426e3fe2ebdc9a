"""Horovod's callbacks for Keras 3."""
# mypy: ignore-errors
# TensorFlow may not be there.
import keras as _keras

from .._keras import callbacks_of as _callbacks_of

_made = _callbacks_of(_keras.callbacks.Callback)
BroadcastGlobalVariablesCallback = _made["BroadcastGlobalVariablesCallback"]
MetricAverageCallback = _made["MetricAverageCallback"]
LearningRateScheduleCallback = _made["LearningRateScheduleCallback"]
LearningRateWarmupCallback = _made["LearningRateWarmupCallback"]
