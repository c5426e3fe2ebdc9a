// A backend for ranks that are threads of one process: real collectives without sockets, for tests
// that need many cases or ranks, and proof that a transport can be written against the public
// backend.h alone.
#pragma once

#include "ddp/backend.h"

// Registers the backend "threads" once; call it before creating groups.
void register_thread_backend();

// Like "threads", but without DDP_BACKEND_FUSES_SCALE and without match, as a plain user's
// transport would be: "threads-plain". "threads-single" asks for one thread
// (DDP_BACKEND_ONE_THREAD), "threads-caller" for threads of the program's that wait
// (DDP_BACKEND_CALLER_THREAD), and they check that they get it.
