// The machine's own limit for an allreduce between ranks of one host.
#pragma once

#include <cstddef>
#include <vector>

namespace bench {

// Touches what an ideal allreduce in shared memory touches, in place, and nothing else: of each of
// `world` buffers of `bytes` bytes a rank reads its own part, 1 / world of it, adds the parts up,
// and writes the sum into all of them. So each rank reads and writes `bytes` bytes. The memory has
// the layout that buffers shared by all ranks would have, but is this process's own, and ranks do
// not wait for each other: there is nothing left but loads and stores.
class Limit {
public:
    Limit(int world, int rank, std::size_t bytes);
    Limit(const Limit&) = delete;
    Limit& operator=(const Limit&) = delete;
    ~Limit();

    // Runs once and returns its milliseconds. With more ranks than cores: the time that the thread
    // ran, as many times as there are ranks to a core.
    double pass() const;

private:
    std::size_t size_;  // of the memory, in bytes
    void* memory_;
    std::vector<float*> parts_;
    std::size_t count_;     // floats in a part
    double ranks_to_core_;  // 1 when there is a core for each
};

}  // namespace bench
