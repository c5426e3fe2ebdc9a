// Steps that are captured into a graph of a device, which the program then launches again and
// again without libddp: what such a step may do, and that all of it goes into one graph.
#pragma once

#include <cstdint>

namespace libddp {

struct ReducerParts;

// Throws UNSUPPORTED where a graph could not do the step again, and INVALID_STATE where it could
// after something else.
void require_capturable(const ReducerParts& parts);
// A gradient or a call of the step that is there comes on a stream with this capture
// (DeviceStream::capture), before it has any effect. Throws INVALID_STATE unless the whole step is
// part of that graph, or of none; and as require_capturable().
void join_graph(ReducerParts& parts, std::uint64_t capture);
// The same for all streams of the caller's.
void join_graph_of_callers(ReducerParts& parts);
// The graph keeps the buckets. Before the step ends.
void keep_in_graph(const ReducerParts& parts);
// Throws INVALID_STATE if the step is captured: `call` works on the host.
void refuse_in_graph(const ReducerParts& parts, const char* call);

}  // namespace libddp
