// Kernels of top-k. The bound, the k-th largest magnitude, is found from its highest bits down: for
// each digit all blocks count which digits the numbers have that begin as the bound does, and one
// block for each part chooses. Then chunks are told where their numbers go, which are written in
// ascending order of their places, those at the bound as long as there is room.
#pragma once

#include "kernels/cuda/codec_table.h"

namespace libddp::cuda {

// elements: many more than there are counts to be added up
constexpr std::uint64_t kSearchChunk = 16384;
constexpr std::uint64_t kScatterChunk = 2048;  // whose sums a block holds

// The state of the search for a part's bound.
struct Search {
    std::uint64_t bound;
    std::uint64_t room;  // how many of those at the bound are taken
    std::uint64_t counts[codec::kDigitValues];
};

// Counts in a chunk, or in all chunks before it.
struct Found {
    std::uint64_t above, at;
};

LIBDDP_EVERYWHERE Search& search_of(const CodecTable& table, const ChunkPlace& place) {
    return static_cast<Search*>(table.searches)[place.index];
}
LIBDDP_EVERYWHERE Found& found_in(const CodecTable& table, const ChunkPlace& place,
                                  std::uint64_t chunk) {
    return static_cast<Found*>(table.partials)[place.row.first_partial + chunk];
}

// For each lane the sum of values[0] of those before it, in one half or the other.
template <class T, class Threads>
LIBDDP_COOPERATIVE const T* sum_before(const Threads& threads, T (&values)[2][kLanes]) {
    threads.sync();
    int from = 0;
    for (std::uint32_t reach = 1; reach < kLanes; reach *= 2, from = 1 - from) {
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size())
            values[1 - from][lane] =
                values[from][lane] + (lane >= reach ? values[from][lane - reach] : 0);
        threads.sync();
    }
    for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size())
        values[1 - from][lane] = lane == 0 ? 0 : values[from][lane - 1];
    threads.sync();
    return values[1 - from];
}

// For each chunk: adds up how many of the numbers that begin as the bound does have which digit.
template <class Format>
struct TopKCount {
    using Real = typename Format::Compute;
    using Bits = codec::Bits<Real>;
    struct Shared {
        std::uint32_t counts[codec::kDigitValues];
    };
    static constexpr int kThreads = 512;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        const Stretch stretch(place.number, kSearchChunk, place.row.count);
        const Input<Format> x(place.row);
        Search& search = search_of(table, place);
        const Bits begins_as = static_cast<Bits>(search.bound) >> (table.left + table.digit);
        const Bits mask = (Bits{1} << table.digit) - 1;
        for (std::uint32_t i = threads.index(); i < codec::kDigitValues; i += threads.size())
            shared.counts[i] = 0;
        threads.sync();
        bool finite = true;
        for (std::uint32_t i = threads.index(); i < stretch.count; i += threads.size()) {
            const Real value = x[stretch.begin + i];
            finite = finite && codec::is_finite(value);
            const Bits bits = codec::magnitude(value) >> table.left;
            if (bits >> table.digit == begins_as) threads.add(&shared.counts[bits & mask], 1);
        }
        if (!finite)
            threads.mark(sent_by(table, static_cast<std::uint64_t>(table.rank)) + place.part);
        threads.sync();
        for (std::uint32_t i = threads.index(); i < codec::kDigitValues; i += threads.size())
            if (shared.counts[i] != 0)
                threads.add(&search.counts[i], std::uint64_t{shared.counts[i]});
    }
};

// For each part: the bound's next digit, from the largest down.
template <class Real>
struct TopKChoose {
    struct Shared {
        std::uint64_t counts[2][kLanes];
    };
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        Search& search = search_of(table, place);
        const bool first = table.left + table.digit == codec::kMagnitudeBits<Real>;
        const Known known{search.bound, first ? place.row.kept : search.room};
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
            shared.counts[0][lane] = 0;
            for (std::uint32_t i = 0; i < kEach; ++i)
                shared.counts[0][lane] += search.counts[value_of(lane, i)];
        }
        const std::uint64_t* larger = sum_before(threads, shared.counts);
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size())
            choose(table, search, lane, known, larger[lane]);
    }

private:
    struct Known {
        std::uint64_t bound, room;
    };
    static constexpr std::uint32_t kEach = codec::kDigitValues / kLanes;

    // The i-th value of a lane, in descending order.
    static LIBDDP_COOPERATIVE std::uint32_t value_of(std::uint32_t lane, std::uint32_t i) {
        return codec::kDigitValues - 1 - (lane * kEach + i);
    }

    // Only one lane finds it among its values. All leave zeros for the next digit.
    static LIBDDP_COOPERATIVE void choose(const CodecTable& table, Search& search,
                                          std::uint32_t lane, const Known& known,
                                          std::uint64_t larger) {
        for (std::uint32_t i = 0; i < kEach; ++i) {
            const std::uint32_t value = value_of(lane, i);
            const std::uint64_t count = search.counts[value];
            search.counts[value] = 0;
            if (larger < known.room && larger + count >= known.room) {
                search.bound = known.bound | std::uint64_t{value} << table.left;
                search.room = known.room - larger;
            }
            larger += count;
        }
    }
};

// How a number stands to the bound.
inline constexpr std::uint8_t kBelow = 0, kAt = 1, kAbove = 2;

template <class Real>
LIBDDP_EVERYWHERE std::uint8_t standing(Real x, codec::Bits<Real> bound) {
    const codec::Bits<Real> bits = codec::magnitude(x);
    return bits > bound ? kAbove : bits == bound ? kAt : kBelow;
}

// For each chunk: how many it holds.
template <class Format>
struct TopKFind {
    using Real = typename Format::Compute;
    struct Shared {
        std::uint32_t above, at;
    };
    static constexpr int kThreads = 256;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        const Stretch stretch(place.number, kSearchChunk, place.row.count);
        const Input<Format> x(place.row);
        const auto bound = static_cast<codec::Bits<Real>>(search_of(table, place).bound);
        if (threads.index() == 0) shared.above = shared.at = 0;
        threads.sync();
        std::uint32_t above = 0, at = 0;
        for (std::uint32_t i = threads.index(); i < stretch.count; i += threads.size()) {
            const std::uint8_t kind = standing(x[stretch.begin + i], bound);
            above += kind == kAbove ? 1u : 0u;
            at += kind == kAt ? 1u : 0u;
        }
        if (above != 0) threads.add(&shared.above, above);
        if (at != 0) threads.add(&shared.at, at);
        threads.sync();
        if (threads.index() == 0) found_in(table, place, place.number) = {shared.above, shared.at};
    }
};

// For each part: from how many its chunks hold to how many all chunks before hold. A lane adds up
// chunks that follow each other.
struct TopKPlaces {
    struct Shared {
        std::uint64_t above[2][kLanes], at[2][kLanes];
    };
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        const std::uint64_t chunks = codec::divide_up(place.row.count, kSearchChunk);
        const std::uint64_t each = codec::divide_up(chunks, kLanes);
        const auto end_of = [&](std::uint32_t lane) {
            return (lane + 1) * each < chunks ? (lane + 1) * each : chunks;
        };
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
            Found sum{0, 0};
            for (std::uint64_t chunk = lane * each; chunk < end_of(lane); ++chunk) {
                sum.above += found_in(table, place, chunk).above;
                sum.at += found_in(table, place, chunk).at;
            }
            shared.above[0][lane] = sum.above;
            shared.at[0][lane] = sum.at;
        }
        const std::uint64_t* above = sum_before(threads, shared.above);
        const std::uint64_t* at = sum_before(threads, shared.at);
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
            Found before{above[lane], at[lane]};
            for (std::uint64_t chunk = lane * each; chunk < end_of(lane); ++chunk) {
                Found& found = found_in(table, place, chunk);
                const Found here = found;
                found = before;
                before.above += here.above;
                before.at += here.at;
            }
        }
    }
};

// The message of a rank for a part.
template <class Real>
struct Sent {
    LIBDDP_EVERYWHERE Sent(const CodecTable& table, const CodecRow& row, std::uint64_t rank)
        : values(reinterpret_cast<Real*>(sent_by(table, rank) + row.packed)),
          places(reinterpret_cast<std::uint32_t*>(values + row.kept)) {}

    Real* const values;
    std::uint32_t* const places;
};

// For each chunk: writes its numbers and their places.
template <class Format>
struct TopKWrite {
    using Real = typename Format::Compute;
    // elements of a lane, that follow each other
    static constexpr std::uint32_t kRun = kSearchChunk / kLanes;
    struct Shared {
        alignas(4) std::uint8_t kinds[kLanes][kRun + 4];  // lanes begin in different banks
        std::uint32_t above[2][kLanes], at[2][kLanes];
    };
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        const Stretch stretch(place.number, kSearchChunk, place.row.count);
        const Input<Format> x(place.row);
        const Search& search = search_of(table, place);
        const auto bound = static_cast<codec::Bits<Real>>(search.bound);
        for (std::uint32_t i = threads.index(); i < kSearchChunk; i += threads.size())
            shared.kinds[i / kRun][i % kRun] =
                i < stretch.count ? standing(x[stretch.begin + i], bound) : kBelow;
        threads.sync();
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size())
            count(shared, lane);
        const std::uint32_t* above = sum_before(threads, shared.above);
        const std::uint32_t* at = sum_before(threads, shared.at);
        const Found before = found_in(table, place, place.number);
        const Sent<Real> sent(table, place.row, static_cast<std::uint64_t>(table.rank));
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size())
            write(shared.kinds[lane], x, stretch.begin + std::uint64_t{lane} * kRun,
                  {before.above + above[lane], before.at + at[lane]}, search.room, sent);
    }

private:
    // Four kinds in one word.
    static LIBDDP_COOPERATIVE std::uint32_t four(const std::uint8_t* kinds) {
        return load_word<std::uint32_t>(kinds);
    }
    static LIBDDP_COOPERATIVE std::uint32_t sum_of_bytes(std::uint32_t word) {
        return word * 0x01010101u >> 24;
    }

    static LIBDDP_COOPERATIVE void count(Shared& shared, std::uint32_t lane) {
        std::uint32_t above = 0, at = 0;
        for (std::uint32_t i = 0; i < kRun; i += 4) {
            const std::uint32_t kinds = four(shared.kinds[lane] + i);
            above += sum_of_bytes(kinds / kAbove & 0x01010101u);
            at += sum_of_bytes(kinds & 0x01010101u);
        }
        shared.above[0][lane] = above;
        shared.at[0][lane] = at;
    }

    // before: how many come before these.
    static LIBDDP_COOPERATIVE void write(const std::uint8_t* kinds, const Input<Format>& x,
                                         std::uint64_t begin, Found before, std::uint64_t room,
                                         const Sent<Real>& sent) {
        for (std::uint32_t i = 0; i < kRun; ++i) {
            if (i % 4 == 0 && four(kinds + i) == 0) {
                i += 3;
                continue;
            }
            if (kinds[i] == kBelow) continue;
            const std::uint64_t to = before.above + (before.at < room ? before.at : room);
            if (kinds[i] == kAbove || before.at < room) {
                sent.values[to] = x[begin + i];
                sent.places[to] = static_cast<std::uint32_t>(begin + i);
            }
            ++(kinds[i] == kAbove ? before.above : before.at);
        }
    }
};

// For each chunk: the sum of what the ranks have sent of it, in their order, and what this rank has
// not sent.
template <class Format>
struct TopKAddUp {
    using Real = typename Format::Compute;
    static constexpr std::uint32_t kRanks = 64;  // whose numbers are looked for at a time
    struct Shared {
        Real sums[kScatterChunk];
        std::uint8_t sent[kScatterChunk];
        std::uint64_t first[kRanks], last[kRanks];
        std::uint8_t spoilt;
    };
    static constexpr int kThreads = 256;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        const Stretch stretch(place.number, kScatterChunk, place.row.count);
        const Input<Format> input(place.row);
        const bool spoilt = is_spoilt(threads, table, place.part, shared.spoilt);
        for (std::uint32_t i = threads.index(); i < stretch.count; i += threads.size()) {
            shared.sums[i] = spoilt ? quiet_nan<Real>() : 0;
            shared.sent[i] = 0;
        }
        const auto world = static_cast<std::uint32_t>(table.world);
        for (std::uint32_t first = 0; first < world && !spoilt; first += kRanks)
            scatter(threads, shared, table, place, stretch, first,
                    world - first < kRanks ? world - first : kRanks);
        threads.sync();
        for (std::uint32_t i = threads.index(); i < stretch.count; i += threads.size()) {
            // Nothing is left of an element that is sent.
            if (input.residual(0) && !spoilt)
                *input.residual(stretch.begin + i) = shared.sent[i] ? 0 : input[stretch.begin + i];
            *input.gradient(stretch.begin + i) =
                Format::store(shared.sums[i] * static_cast<Real>(table.scale));
        }
    }

private:
    template <class Threads>
    static LIBDDP_COOPERATIVE void scatter(const Threads& threads, Shared& shared,
                                           const CodecTable& table, const ChunkPlace& place,
                                           const Stretch& stretch, std::uint32_t first,
                                           std::uint32_t ranks) {
        threads.sync();
        for (std::uint32_t r = threads.index(); r < ranks; r += threads.size()) {
            const Sent<Real> sent(table, place.row, first + r);
            shared.first[r] = lower_bound(sent.places, place.row.kept, stretch.begin);
            shared.last[r] =
                lower_bound(sent.places, place.row.kept, stretch.begin + stretch.count);
        }
        for (std::uint32_t r = 0; r < ranks; ++r) {
            threads.sync();
            const Sent<Real> sent(table, place.row, first + r);
            for (std::uint64_t i = shared.first[r] + threads.index(); i < shared.last[r];
                 i += threads.size()) {
                const auto at = static_cast<std::uint32_t>(sent.places[i] - stretch.begin);
                shared.sums[at] += sent.values[i];
                if (first + r == static_cast<std::uint32_t>(table.rank)) shared.sent[at] = 1;
            }
        }
    }

    // How many places are below.
    static LIBDDP_COOPERATIVE std::uint64_t lower_bound(const std::uint32_t* places,
                                                        std::uint64_t count, std::uint64_t bound) {
        std::uint64_t low = 0, high = count;
        while (low < high) {
            const std::uint64_t middle = (low + high) / 2;
            if (places[middle] < bound)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
};

}  // namespace libddp::cuda
