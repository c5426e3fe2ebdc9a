// ddp-bench peers: libddp beside other libraries.
#pragma once

namespace bench {

// Replaces this process by the script that runs the peers, with the arguments that follow "peers".
// Throws std::runtime_error where the script or Python is missing.
[[noreturn]] void run_peers(int argc, const char* const* argv);

}  // namespace bench
