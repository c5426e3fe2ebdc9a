"""Elastic jobs of TensorFlow. ddprun starts them with --min-ranks."""
# mypy: ignore-errors
# TensorFlow may not be there.
from .._elastic import ObjectState, State, run
from .._keras_elastic import TensorFlowKerasState, TensorFlowState

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
