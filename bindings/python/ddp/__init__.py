"""libddp: data-parallel training for everyone who is not PyTorch.

    import ddp, numpy as np

    group = ddp.Group()                        # rank and world size from the launcher: ddprun -n 2 python3 train.py
    ctx = ddp.Context(group)
    w = ctx.register("w", weights, gradients)  # arrays with __dlpack__ or the buffer protocol, used where they lie
    ctx.commit()                               # every rank starts from rank 0's weights
    for batch in batches:
        ...                                    # write this rank's gradient into `gradients`
        ctx.grad_ready(w)
        ctx.finalize()                         # now it is the mean over all ranks

docs/python.md has a complete trainer and the reference.
"""
import os as _os
import sys as _sys

# TensorFlow shows functions of BoringSSL to the whole process. libddp must not take them for OpenSSL's.
_flags = _sys.getdlopenflags()
_sys.setdlopenflags(_flags | (_os.RTLD_DEEPBIND if "tensorflow" in _sys.modules else 0))
from . import _ddp
_sys.setdlopenflags(_flags)
from ._arrays import DtypeLike, device_of, dtype_of
from ._ddp import Memory
from ._errors import (AbortedError, AlreadyExistsError, CallbackError, Error, IOError, InternalError, InterruptedError,
                      InvalidArgumentError, InvalidStateError, LimitError, MismatchError, MissingGradientError,
                      NonfiniteError, NotFoundError, OutOfMemoryError, PermissionDeniedError, RankFailedError,
                      TimeoutError, UnavailableError, UnevenInputsError, UnsupportedError)
from .averager import Averager
from .bucket import Bucket, Gradient
from .context import Context, Parameter
from .context_shards import Piece
from .context_votes import Vote, Votes
from .elastic import Elastic, ElasticStep
from .group import Environment, Group, backend_available, environment
from .optimizer import Optimizer, OptimizerState
from .record import mark, set_blame_signal, set_workload
from .sampler import DistributedSampler, ElasticSampler, shard_range
from .stats import Stats
from .store import Store
from .work import Work

F16, BF16, F32, F64 = _ddp.DDP_F16, _ddp.DDP_BF16, _ddp.DDP_F32, _ddp.DDP_F64
I32, I64, U8 = _ddp.DDP_I32, _ddp.DDP_I64, _ddp.DDP_U8
C64, C128 = _ddp.DDP_C64, _ddp.DDP_C128
SUM, AVG, PROD, MIN, MAX = _ddp.DDP_SUM, _ddp.DDP_AVG, _ddp.DDP_PROD, _ddp.DDP_MIN, _ddp.DDP_MAX

__all__ = [
    "Averager", "Bucket", "Context", "DistributedSampler", "Elastic", "ElasticSampler", "ElasticStep", "Environment", "Gradient", "Group", "Memory", "Optimizer", "OptimizerState", "Parameter", "Piece", "Stats", "Store", "Vote", "Votes", "Work",
    "backend_available", "device_count", "dtype_name", "environment", "mark", "set_blame_signal", "set_workload", "shard_range",
    "__version__",
    "F16", "BF16", "F32", "F64", "I32", "I64", "U8", "C64", "C128", "SUM", "AVG", "PROD", "MIN", "MAX",
    "AbortedError", "AlreadyExistsError", "CallbackError", "Error", "IOError", "InternalError", "InterruptedError",
    "InvalidArgumentError", "InvalidStateError", "LimitError", "MismatchError", "MissingGradientError", "NonfiniteError",
    "NotFoundError", "OutOfMemoryError", "PermissionDeniedError", "RankFailedError", "TimeoutError", "UnavailableError",
    "UnevenInputsError", "UnsupportedError",
]

__version__ = _ddp.ddp_version()


def device_count(kind: str = "cuda") -> int:
    """The number of devices; an Error says why there is none."""
    return _ddp.ddp_device_count(device_of(kind)[0])



def dtype_name(dtype: DtypeLike) -> str:
    """"f32" and so on."""
    return _ddp.ddp_dtype_name(dtype_of(dtype))
