#include "backends/nccl/places.h"

#include <map>
#include <sstream>

#include "util/error.h"
#include "util/options.h"

namespace libddp::cuda {
namespace {

constexpr int kSharesSince = 23000;

std::string describe_shared(const Place& place, std::size_t one, std::size_t other) {
    return str("ranks ", one, " and ", other, " both use ", place.name, " of one host");
}

}  // namespace

std::string nccl_version_text(int version) {
    return str(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::string encode(const Place& place) {
    return str(place.nccl, '\n', place.shares ? 1 : 0, '\n', place.name, '\n', place.gpu);
}

Place decode(const std::string& text) {
    std::istringstream lines(text);
    std::string version, shares;
    Place place;
    if (!std::getline(lines, version) || !std::getline(lines, shares) || !std::getline(lines, place.name) ||
        !std::getline(lines, place.gpu))
        fail(DDP_ERROR_INTERNAL, "'", text, "' does not say which GPU a rank uses");
    place.nccl = static_cast<int>(parse_int(version, 0, INT32_MAX, "NCCL's version"));
    place.shares = shares == "1";
    return place;
}

std::string fault_of(const std::vector<Place>& places, int* rank) {
    std::map<std::string, std::size_t> rank_of;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const Place& place = places[i];
        *rank = static_cast<int>(i);
        if (place.nccl != places[0].nccl)
            return str("rank ", i, " has NCCL ", nccl_version_text(place.nccl), ", and rank 0 has ",
                       nccl_version_text(places[0].nccl), "; install one version on all hosts");
        const auto [taken, fresh] = rank_of.emplace(place.gpu, i);
        if (fresh) continue;
        const std::string shared = describe_shared(place, taken->second, i);
        if (place.nccl < kSharesSince)
            return str(shared, ", which NCCL ", nccl_version_text(place.nccl), " does not support (from ",
                       nccl_version_text(kSharesSince),
                       " on it does); give each rank a GPU of its own, or use the backend auto, which copies through "
                       "the host");
        if (!place.shares || !places[taken->second].shares)
            return str(shared, "; NCCL supports that with ", kShareVariable,
                       "=1 in the environment of both. Or give each rank a GPU of its own, or use the backend auto");
    }
    *rank = -1;
    return {};
}

}  // namespace libddp::cuda
