// The arguments of the kernels of codecs (kernels/codec.h), and their common code. Cooperating
// threads (everywhere.h) run a kernel and take one chunk of work after another. All chunks of all
// parts are numbered in one sequence, so that work is divided by bytes whatever the sizes of the
// parts. Plain C++ can include these files: tests run the kernels on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec_arithmetic.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/tables.h"
#include "kernels/everywhere.h"

namespace libddp::cuda {

using codec::kLanes;

struct CodecRow {
    void* gradient;
    void* residual;  // null: none
    std::uint64_t count;
    std::uint64_t packed;         // where its bytes begin in what a rank sends
    std::uint64_t kept;           // top-k: how many are sent
    std::uint64_t first_chunk;    // of this part, among all
    std::uint64_t first_partial;  // its place among what chunks leave in the scratch
};

constexpr int kCodecRows = 64;

struct CodecTable {
    std::uint64_t chunks;  // of all rows
    unsigned char* gathered;
    std::uint64_t size;  // bytes that a rank sends
    void* partials;      // what chunks leave for later kernels
    void* searches;      // top-k: one for each row
    std::uint64_t block;
    double scale;
    std::int32_t rank, world;
    std::int32_t rows;
    std::int32_t first_part;   // the number of the first row's part
    std::int32_t left, digit;  // top-k: bits below the digit that is looked for, and in it
    CodecRow row[kCodecRows];
};
static_assert(sizeof(CodecTable) <= 4096);  // parameters of a kernel are 4 KiB at most

LIBDDP_EVERYWHERE unsigned char* sent_by(const CodecTable& table, std::uint64_t rank) {
    return table.gathered + rank * table.size;
}

// A chunk's row, and its number in it.
struct ChunkPlace {
    LIBDDP_EVERYWHERE ChunkPlace(const CodecTable& table, std::uint64_t chunk)
        : index(find_row(table, chunk, 0, table.rows - 1)),
          row(table.row[index]),
          number(chunk - row.first_chunk),
          part(static_cast<std::uint64_t>(table.first_part + index)) {}

    const int index;
    const CodecRow& row;
    const std::uint64_t number;
    const std::uint64_t part;
};

// The elements of a chunk where each has as many, but for the last.
struct Stretch {
    LIBDDP_EVERYWHERE Stretch(std::uint64_t number, std::uint64_t elements, std::uint64_t end)
        : begin(number * elements),
          count(static_cast<std::uint32_t>(end - begin < elements ? end - begin : elements)) {}

    const std::uint64_t begin;
    const std::uint32_t count;
};

// A gradient, with what was left out of earlier ones.
template <class Format>
class Input {
public:
    using Stored = typename Format::Stored;
    using Real = typename Format::Compute;

    LIBDDP_EVERYWHERE explicit Input(const CodecRow& row)
        : gradient_(static_cast<Stored*>(row.gradient)),
          residual_(static_cast<Real*>(row.residual)) {}

    LIBDDP_EVERYWHERE Real operator[](std::uint64_t i) const {
        const Real x = Format::load(gradient_[i]);
        return residual_ ? x + residual_[i] : x;
    }
    LIBDDP_EVERYWHERE Stored* gradient(std::uint64_t i) const { return gradient_ + i; }
    // Null: none is kept.
    LIBDDP_EVERYWHERE Real* residual(std::uint64_t i) const {
        return residual_ ? residual_ + i : nullptr;
    }

private:
    Stored* const gradient_;
    Real* const residual_;
};

// For bytes that are aligned to a Word.
template <class Word>
LIBDDP_EVERYWHERE Word load_word(const unsigned char* from) {
#if defined(__CUDA_ARCH__)
    return *reinterpret_cast<const Word*>(from);
#else
    Word word;
    memcpy(&word, from, sizeof word);
    return word;
#endif
}

// The share of one block in a kernel's work on a table: every n-th chunk from a first one on.
template <class Kernel, class Threads, class AnyTable>
LIBDDP_COOPERATIVE void work_on_chunks(const Threads& threads, typename Kernel::Shared& shared,
                                       const AnyTable& table, std::uint64_t first,
                                       std::uint64_t stride) {
    for (std::uint64_t chunk = first; chunk < table.chunks; chunk += stride) {
        Kernel::work(threads, shared, table, chunk);
        threads.sync();  // what is shared is written anew
    }
}

// Calls combine(lane, other) until lane 0 has what all lanes hold: in halves, as codec_arithmetic.h
// says. All see the result.
template <class Threads, class Combine>
LIBDDP_COOPERATIVE void fold_lanes(const Threads& threads, Combine combine) {
    for (std::uint32_t half = kLanes / 2; half > 0; half /= 2) {
        threads.sync();
        for (std::uint32_t lane = threads.index(); lane < half; lane += threads.size())
            combine(lane, lane + half);
    }
    threads.sync();
}

// Whether a rank has marked the part as not finite. flag: what the threads share.
template <class Threads>
LIBDDP_COOPERATIVE bool is_spoilt(const Threads& threads, const CodecTable& table,
                                  std::uint64_t part, std::uint8_t& flag) {
    if (threads.index() == 0) flag = 0;
    threads.sync();
    for (std::uint32_t r = threads.index(); r < static_cast<std::uint32_t>(table.world);
         r += threads.size())
        if (sent_by(table, r)[part] != 0) threads.mark(&flag);
    threads.sync();
    return flag != 0;
}

}  // namespace libddp::cuda
