// Starting this program again as the ranks of a job on this host.
#pragma once

namespace bench {

// Whether a launcher (ddprun, torchrun, mpirun) started this process as one rank of its job.
bool is_launched();

// Starts `world` copies of this process with the same arguments, each as one rank, and waits until
// all have ended. When one fails, a signal arrives or `timeout` seconds have passed, the rest is
// ended too: asked first, killed after that. Returns the exit status for this process: 0, or that
// of the rank that failed first. Throws std::runtime_error where the ranks cannot be started.
int launch(int world, double timeout, char** argv);

}  // namespace bench
