/* ddp.i: the one interface from which every binding's low-level module is generated. It reads the public headers as they
 * are, so that a function that is added to them is in every language at the next build.
 *
 *     swig -python ... ddp.i      with python.i
 *     swig -java ... ddp.i        with java.i
 *     swig -xml ... ddp.i         nothing but the headers: names, types, constants and structs for generators (Julia, Rust)
 *
 * Here stands what holds for every language: which arguments are results, which two belong together, who frees what.
 * A language's file says how that looks there. It is included before the headers and defines the macros and typemaps
 * that roles.i lists; language.i of a new language begins as a copy of that list.
 */
%module ddp

#define DDP_EXPERIMENTAL 1

%{
#include <stdlib.h>
#include <string.h>

#include "ddp/ddp.h"
%}

%include <stdint.i>

#ifndef SWIGXML
/* Inline functions are for C. */
%rename("$ignore", regextarget=1) "^ddp_\\w+_init$";
%include "roles.i"
#if defined(SWIGPYTHON)
%include "python.i"
#elif defined(SWIGJAVA)
%include "java.i"
#endif
%include "handles.i"
%include "structs.i"
#endif

%include "ddp/export.h"
%include "ddp/status.h"
%include "ddp/types.h"
%include "ddp/store.h"
%include "ddp/store_more.h"
%include "ddp/group.h"
%include "ddp/all_to_all.h"
%include "ddp/hook.h"
%include "ddp/context.h"
%include "ddp/check.h"
%include "ddp/in_place.h"
%include "ddp/round_robin.h"
%include "ddp/shard.h"
%include "ddp/shard_state.h"
%include "ddp/sparse.h"
%include "ddp/participation.h"
%include "ddp/freeze.h"
%include "ddp/batch_share.h"
%include "ddp/plan.h"
%include "ddp/norm.h"
%include "ddp/vote.h"
%include "ddp/overlap.h"
%include "ddp/stats.h"
%include "ddp/builtin_hooks.h"
%include "ddp/more_hooks.h"
%include "ddp/averager.h"
%include "ddp/optimizer.h"
%include "ddp/device.h"
%include "ddp/interrupt.h"
%include "ddp/record.h"
%include "ddp/elastic.h"
%include "ddp/backend.h"

#ifdef SWIGPYTHON
/* For the _ddp.py of the stable ABI: the functions themselves, not the Python functions around them that SWIG writes. */
%pythoncode %{ from ._native import * %}
#endif
