"""Horovod's names over libddp, one module for each framework:

    import ddp.horovod.torch as hvd      or .tensorflow, .keras, .numpy

    hvd.init()                           ddprun -n 4 python3 train.py

docs/horovod.md says what is different from Horovod.
"""
