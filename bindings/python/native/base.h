/* base.h: Python's C API and libddp, as every file here needs them. The files include each other in
 * one direction only: ORDERS in tests/install/layers.py says which. */
#ifndef DDP_PYTHON_BASE_H
#define DDP_PYTHON_BASE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

#include "ddp/ddp.h"

#endif /* DDP_PYTHON_BASE_H */
