#include "core/agreement.h"

#include <algorithm>
#include <list>
#include <map>
#include <vector>

#include "comm/pieces.h"
#include "comm/verdict.h"
#include "device/scratch.h"
#include "util/hash.h"
#include "util/text.h"

namespace libddp {
namespace {

// This rank's numbers side by side with everyone's.
template <class T>
std::vector<T> gather(Group& group, const OpTag& tag, const std::vector<T>& mine) {
    std::vector<T> all(mine.size() * static_cast<std::size_t>(group.world()));
    group.run({DDP_COLLECTIVE_ALLGATHER, mine.data(), all.data(), mine.size() * sizeof(T), DDP_U8},
              tag);
    return all;
}

std::string join_lines(const std::string& header, const std::vector<std::string>& lines) {
    std::string text = header + '\n';
    for (const auto& line : lines) text += line + '\n';
    return text;
}

// Line `index` of a table, or "nothing" past its end.
std::string line_at(const std::string& text, std::size_t index) {
    std::size_t begin = 0;
    for (; index > 0; --index) {
        auto end = text.find('\n', begin);
        if (end == std::string::npos) return "nothing";
        begin = end + 1;
    }
    auto end = text.find('\n', begin);
    return end == std::string::npos ? "nothing" : text.substr(begin, end - begin);
}

bool is_param(const std::string& line) {
    return line.starts_with("parameter");
}

// The extents in a line such as "parameter 0 'w' f32[2,3]"; what stands behind them has no
// brackets.
std::vector<std::string> extents_of(const std::string& line) {
    std::vector<std::string> extents;
    const auto begin = line.rfind('['), end = line.rfind(']');
    if (begin == std::string::npos || end == std::string::npos || end < begin) return extents;
    TextIn text(line.substr(begin + 1, end - begin - 1));
    for (std::string extent; std::getline(text, extent, ',');) extents.push_back(extent);
    return extents;
}

// Frameworks that store matrices column by column name the extents of the same memory the other way
// round.
bool is_reversed(const std::string& line, const std::string& other) {
    const auto shape = extents_of(line);
    auto reversed = extents_of(other);
    std::reverse(reversed.begin(), reversed.end());
    return shape == reversed && shape != extents_of(other);
}

// Every rank computes this from the same tables, so every rank says the same.
[[noreturn]] void report_difference(const std::vector<std::string>& tables) {
    std::size_t lines = 0;
    for (const auto& table : tables)
        lines =
            std::max(lines, static_cast<std::size_t>(std::count(table.begin(), table.end(), '\n')));
    for (std::size_t i = 0; i < lines; ++i) {
        const std::string expected = line_at(tables[0], i);
        std::map<std::string, std::vector<std::int32_t>> others;
        for (std::size_t r = 1; r < tables.size(); ++r)
            if (auto line = line_at(tables[r], i); line != expected)
                others[line].push_back(static_cast<std::int32_t>(r));
        if (others.empty()) continue;
        std::string text = str("ranks registered different models: rank 0 has ", expected);
        std::int32_t first = -1;
        bool reversed = false, of_param = is_param(expected);
        for (auto& [line, ranks] : others) {
            text += str("; ", ranks_text(ranks), ranks.size() == 1 ? " has " : " have ", line);
            if (first < 0 || ranks.front() < first) first = ranks.front();
            reversed = reversed || is_reversed(expected, line);
            of_param = of_param || is_param(line);
        }
        if (reversed)
            text +=
                "; the extents are those of the other in reverse: shapes are row-major (C, NumPy), "
                "so give those of a column-major array (Julia, Fortran) from the last to the first";
        ErrorInfo error{DDP_ERROR_MISMATCH, text, first};
        if (of_param) error.param = static_cast<std::int32_t>(i) - 1;  // line 0 is the header
        throw Error(error);
    }
    fail(DDP_ERROR_INTERNAL, "tables hash differently but read the same");
}

}  // namespace

void agree_on_model(Group& group, const OpTag& of, const std::string& header,
                    const std::vector<std::string>& params) {
    if (group.world() == 1) return;
    const OpTag tag = of.with(Purpose::kModel);
    const std::string mine = join_lines(header, params);
    auto heads = gather<std::uint64_t>(group, tag, {Hash().add(mine).value(), mine.size()});
    bool same = true;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < heads.size(); i += 2) {
        same = same && heads[i] == heads[0];
        longest = std::max(longest, static_cast<std::size_t>(heads[i + 1]));
    }
    if (same) return;
    std::vector<char> padded(longest);
    std::copy(mine.begin(), mine.end(), padded.begin());
    auto all = gather(group, tag, padded);
    std::vector<std::string> tables;
    for (std::size_t r = 0; r < heads.size() / 2; ++r)
        tables.emplace_back(all.data() + r * longest, heads[2 * r + 1]);
    // The first rank to throw may end, and with it the group, while others still receive tables.
    // After a barrier all have them, whatever becomes of the barrier.
    try {
        group.run({DDP_COLLECTIVE_BARRIER}, tag);
    } catch (const Error& error) {
        if (error.info().code == DDP_ERROR_INTERRUPTED) throw;
    }
    report_difference(tables);
}

void agree_on_plan(Group& group, const OpTag& of, std::uint64_t hash) {
    if (group.world() == 1) return;
    auto all = gather<std::uint64_t>(group, of.with(Purpose::kPlan), {hash});
    for (std::size_t r = 0; r < all.size(); ++r)
        if (all[r] != all[0])
            throw Error(
                group.break_everywhere({DDP_ERROR_MISMATCH,
                                        str("rank ", r,
                                            " made another bucket plan than rank 0 from the same "
                                            "parameters; do all ranks run the same libddp?"),
                                        static_cast<std::int32_t>(r)}));
}

std::vector<std::int32_t> agree_on_neighbours(Group& group, const OpTag& of,
                                              std::vector<std::int32_t> mine) {
    // The least of the numbers, and of their opposites: the ranks agree where these two are
    // opposites.
    const std::size_t count = mine.size();
    for (std::size_t i = 0; i < count; ++i) mine.push_back(-mine[i]);
    group.run({DDP_COLLECTIVE_ALLREDUCE, nullptr, mine.data(), mine.size(), DDP_I32, DDP_MIN},
              of.with(Purpose::kModel));
    for (std::size_t i = 0; i < count; ++i)
        if (mine[i] != -mine[count + i]) mine[i] = -1;
    mine.resize(count);
    return mine;
}

namespace {

static_assert(sizeof(StepReport) == 32, "it travels as bytes: no padding");

[[noreturn]] void report_sync(Group& group, std::int32_t rank, const StepReport& one,
                              std::int32_t other) {
    throw Error(group.break_everywhere(
        {DDP_ERROR_MISMATCH,
         str("ddp_step_begin: rank ", rank, one.sync ? " syncs" : " does not sync",
             " this step and rank ", other, one.sync ? " does not" : " does",
             " (no_sync); every rank must give ddp_set_sync the same value for a step"),
         rank}));
}

}  // namespace

StepOutcome exchange_step(Group& group, const OpTag& of, const StepReport& mine) {
    std::vector<StepReport> all(static_cast<std::size_t>(group.world()));
    group.run({DDP_COLLECTIVE_ALLGATHER, &mine, all.data(), sizeof mine, DDP_U8},
              of.with(Purpose::kStepBegin));
    StepOutcome outcome;
    std::int64_t most_steps = -1;
    for (std::int32_t rank = 0; rank < group.world(); ++rank) {
        const StepReport& report = all[static_cast<std::size_t>(rank)];
        outcome.costs.push_back(report.joined ? 0 : report.cost);
        if (report.own_steps >= most_steps) {
            most_steps = report.own_steps;
            outcome.last_to_join = rank;
        }
        if (report.joined) {
            if (outcome.first_joined < 0) outcome.first_joined = rank;
            continue;
        }
        if (outcome.present++ == 0) {
            outcome.first_present = rank;
            outcome.sync = report.sync != 0;
        }
        if ((report.sync != 0) != outcome.sync)
            report_sync(group, rank, report, outcome.first_present);
        outcome.total_weight += report.weight;
    }
    return outcome;
}

namespace {

// Tensors below this size are gathered before they are sent, up to this much at a time; larger ones
// are sent from where they lie.
constexpr std::size_t kCoalesceBytes = std::size_t{4} << 20;
// One broadcast of a large tensor sends at most this much, so that a timeout stays meaningful.
constexpr std::size_t kChunkBytes = std::size_t{250} << 20;

// The bytes of one device that travel.
class Sender {
public:
    Sender(Group& group, const OpTag& of, StreamPtr stream, std::int32_t root)
        : group_(group),
          stream_(std::move(stream)),
          tag_(of.with(Purpose::kState).on(stream_)),
          root_(root) {}

    const StreamPtr& stream() const { return stream_; }

    void send(const Param& p) {
        auto* data = static_cast<std::byte*>(p.data);
        if (p.bytes >= kCoalesceBytes) return broadcast(data, p.bytes);
        if (total_bytes(small_) + p.bytes > kCoalesceBytes) flush();
        small_.push_back({data, p.bytes});
    }

    void flush() {
        const std::size_t bytes = total_bytes(small_);
        if (bytes == 0) return;
        std::byte* together = memory_.require(bytes, stream_);
        const bool mine = group_.rank() == root_;
        if (mine) gather_pieces(together, small_, stream_);
        broadcast(together, bytes);
        if (!mine) scatter_pieces(together, small_, stream_);
        small_.clear();
    }

private:
    void broadcast(std::byte* memory, std::size_t bytes) {
        for (std::size_t at = 0; at < bytes; at += kChunkBytes)
            group_.run(
                {DDP_COLLECTIVE_BROADCAST, nullptr, memory + at, std::min(kChunkBytes, bytes - at),
                 DDP_U8, DDP_SUM, root_, device_of_stream(stream_)},
                tag_);
    }

    Group& group_;
    const StreamPtr stream_;
    const OpTag tag_;
    const std::int32_t root_;
    std::vector<Piece> small_;
    ScratchMemory memory_;
};

}  // namespace

// Devices in the order in which they come first, as their numbers may differ between ranks.
void broadcast_state(Group& group, const OpTag& of, const ContextStreams& streams,
                     const std::vector<const Param*>& entries, std::int32_t root) {
    if (group.world() == 1) return;
    std::list<Sender> senders;
    for (const Param* p : entries) {
        if (!p->data || p->bytes == 0 || p->ignored) continue;
        const StreamPtr stream = streams.stream(p->device);
        auto sender = std::find_if(senders.begin(), senders.end(),
                                   [&](const Sender& s) { return s.stream() == stream; });
        if (sender == senders.end())
            sender = senders.emplace(senders.end(), group, of, stream, root);
        sender->send(*p);
    }
    for (Sender& sender : senders) sender.flush();
}

}  // namespace libddp
