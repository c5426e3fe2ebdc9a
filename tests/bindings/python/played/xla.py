"""XLA on a GPU as tests/bindings/python/played/xla.cc plays it, and how ddp.jax sees it.

    build(COMPILER, FAKE_DEVICE, FOLDER) -> the library, made in FOLDER for this Python's JAX
    load(LIBRARY, STREAMS)               before the first DataParallel: JAX's CPUs are GPUs for ddp.jax, with so many streams in turn
"""
import ctypes

from players import built


def build(compiler, fake_device, folder):
    """Made once for each JAX and each source."""
    import jax
    return built("xla.cc", jax.__version__, compiler, fake_device, folder, "-std=c++20", "-isystem", jax.ffi.include_dir())


def load(library, streams):
    import jax

    from ddp import _ddp, _jax_calls
    played = ctypes.CDLL(library)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    played.played_xla(ctypes.c_void_p(pointer_of(_ddp.jax_target(_jax_calls._on_call, True), None)), streams)
    jax.ffi.register_ffi_target("ddp_played", jax.ffi.pycapsule(played.played_call), platform="cpu")

    class Played(_jax_calls.Kind):
        registered_target = "ddp_played"

        def compiles_for(self, platforms):
            return set(platforms) == {"cpu"}

        def index_of(self, leaf):
            return 0 if leaf.devices() == {jax.devices()[0]} else None

    _jax_calls.KINDS[:] = [Played("cuda", "cpu", "ddp_played")]
    return played
