#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "device/scratch.h"
#include "hooks/plain.h"
#include "hooks/powersgd.h"
#include "kernels/default_arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

std::size_t side_of(std::size_t count) {
    auto side = static_cast<std::size_t>(std::sqrt(static_cast<double>(count)));
    while (side * side < count) ++side;
    while (side > 0 && (side - 1) * (side - 1) >= count) --side;
    return side;
}

}  // namespace

struct BatchedPowerSgdHook::Job {
    // A parameter.
    struct Piece {
        std::size_t begin, count;
        bool absent;  // this rank has no gradient: its error waits
    };

    powersgd::Site site;
    ddp_thin_rules rules{};
    bool keeps_q = true;
    std::byte* gradients = nullptr;
    std::shared_ptr<std::byte> errors;  // null without error feedback
    // The part of the errors that takes part in P and Q: `errors` itself, a copy with zeros for
    // absent gradients, or null for nothing.
    std::byte* fed = nullptr;
    std::size_t count = 0;
    std::vector<Piece> pieces;
    std::vector<ddp_segment> gaps;  // between pieces
    ddp_thin p{}, q{};
    // After the elements of P one for each piece: NaN if a rank found it not finite.
    powersgd::ThinMatrices thin;
    ScratchMemory parts, flags, workspace, fed_errors;

    std::size_t gradient_size() const { return dtype_size(site.dtype()); }
    std::size_t error_size() const { return dtype_size(site.compute()); }
    std::byte* mark(std::size_t piece) const {
        return thin.p.get() + (p.rows * p.columns + piece) * error_size();
    }
    // Whether P or Q is not finite, and then the same for each piece.
    std::uint32_t* flag(std::size_t i) const {
        return reinterpret_cast<std::uint32_t*>(flags.get()) + i;
    }
    std::size_t flag_count() const { return 1 + pieces.size(); }

    // Elements of some rows, or of a part of one, as a matrix of their own, with these errors
    // (null: none).
    ddp_low_rank matrix(std::byte* error, std::size_t begin, std::size_t rows,
                        std::size_t columns) const {
        const std::size_t side = p.rows, row = begin / side, column = begin % side;
        const auto at = [this](const ScratchMemory& all, std::size_t i) {
            return all.get() + i * error_size();
        };
        ddp_low_rank m{};
        m.gradient = gradients + begin * gradient_size();
        m.error = error ? error + begin * error_size() : nullptr;
        m.p = at(thin.p, row);
        m.q = at(thin.q, column);
        m.own_q = at(thin.own_q, column);
        m.rows = rows;
        m.columns = columns;
        m.rank = p.columns;
        m.p_stride = m.q_stride = side;
        m.parts = parts.get();
        return m;
    }
    // The rows that are full, and the one that may follow. Rows of zeros are not there.
    std::vector<ddp_low_rank> rows() const { return matrices(fed, 0, count); }
    // So many elements from one on: the end of a row, whole rows, the beginning of a row.
    std::vector<ddp_low_rank> matrices(std::byte* error, std::size_t begin,
                                       std::size_t number) const {
        const std::size_t side = p.rows, end = begin + number;
        std::vector<ddp_low_rank> all;
        const auto add = [&](std::size_t upto, std::size_t height, std::size_t width) {
            if (height * width > 0) all.push_back(matrix(error, begin, height, width));
            begin = upto;
        };
        if (const std::size_t next = std::min((begin + side - 1) / side * side, end); next > begin)
            add(next, 1, next - begin);
        const std::size_t full = (end - begin) / side;
        add(begin + full * side, full, side);
        add(end, 1, end - begin);
        return all;
    }
    // The errors themselves stay as they are until the result is here: a step that fails before
    // changes nothing.
    void copy_fed_errors() const {
        if (!fed || fed == errors.get()) return;
        std::vector<ddp_segment> moves;
        std::size_t end = 0;
        const auto add = [&](const void* from, std::size_t begin, std::size_t number) {
            if (number > 0) moves.push_back({fed + begin * error_size(), from, number});
        };
        for (const Piece& piece : pieces) {
            add(nullptr, end, piece.begin - end);
            add(piece.absent ? nullptr : errors.get() + piece.begin * error_size(), piece.begin,
                piece.count);
            end = piece.begin + piece.count;
        }
        add(nullptr, end, count - end);
        site.transfer(moves, site.compute());
    }
};

// A parameter that no longer takes part would keep the errors of all that were in its bucket.
void BatchedPowerSgdHook::set_buckets(const Buckets& buckets) {
    jobs_.clear();
    blocks_.clear();
    state().separate_errors();
    PowerSgdHook::set_buckets(buckets);
}

WorkPtr BatchedPowerSgdHook::compress(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    const std::size_t side = side_of(bucket.count),
                      columns = bucket.count > 0 ? columns_for(side, side) : 0;
    std::size_t content = 0;
    for (const BucketTensor& tensor : bucket.tensors)
        content += static_cast<std::size_t>(tensor.count);
    count_elements(content, columns > 0 ? 2 * side * columns : content);
    if (columns == 0) return AllreduceHook().reduce(group, bucket, tag);
    auto job = jobs_.take(bucket.index);
    lay_out(bucket, side, columns, *job);
    project(*job);
    return exchange(*group.impl, job, bucket.op(), tag, project_back, restore);
}

// The errors are moved together when the bucket has other parameters than in the last step, or new
// ones were loaded.
std::shared_ptr<std::byte> BatchedPowerSgdHook::errors_of(const ddp_bucket& bucket,
                                                          powersgd::Site& site) {
    const std::size_t item = dtype_size(site.compute());
    std::shared_ptr<std::byte> memory = blocks_[bucket.index].lock();
    std::vector<std::pair<Kept*, std::size_t>> places;
    bool in_place = true;
    for (const BucketTensor& tensor : bucket.tensors) {
        if (tensor.count == 0) continue;
        Kept& kept = state().error(tensor.param, static_cast<std::size_t>(tensor.count), site);
        const std::size_t offset = bucket.first_element(tensor) * item;
        in_place = in_place && memory && kept.memory.get() == memory.get() + offset;
        places.emplace_back(&kept, offset);
    }
    if (in_place) return memory;
    memory = Kept::zeros(site.compute(), bucket.count, 1, site.home()).memory;
    std::vector<ddp_segment> moves;
    for (const auto& [kept, offset] : places)
        moves.push_back({memory.get() + offset, kept->memory.get(), kept->count()});
    transfer(site.home(), moves, site.compute());
    site.use_home();
    for (const auto& [kept, offset] : places) kept->memory = {memory, memory.get() + offset};
    blocks_[bucket.index] = memory;
    return memory;
}

void BatchedPowerSgdHook::lay_out(const ddp_bucket& bucket, std::size_t side, std::size_t columns,
                                  Job& job) {
    job.site = powersgd::Site(bucket);
    job.rules = rules();
    job.keeps_q = starts_warm();
    job.gradients = static_cast<std::byte*>(bucket.buffer);
    job.errors = feeds_back() ? errors_of(bucket, job.site) : nullptr;
    job.count = bucket.count;
    job.pieces.clear();
    job.gaps.clear();
    std::size_t end = 0, absent = 0;
    const auto add_gap = [&](std::size_t begin) {
        if (begin > end)
            job.gaps.push_back({job.gradients + end * job.gradient_size(), nullptr, begin - end});
    };
    for (const BucketTensor& tensor : bucket.tensors) {
        const std::size_t begin = bucket.first_element(tensor),
                          count = static_cast<std::size_t>(tensor.count);
        add_gap(begin);
        end = begin + count;
        if (count > 0) job.pieces.push_back({begin, count, tensor.absent});
        if (count > 0 && tensor.absent) ++absent;
    }
    add_gap(bucket.count);
    const std::size_t item = job.error_size();
    const auto take = [&](ScratchMemory& memory, std::size_t bytes) {
        return memory.require(bytes, job.site.stream());
    };
    job.p = job.q = {};
    job.p.rows = job.q.rows = side;
    job.p.columns = job.q.columns = columns;
    job.p.qr = job.q.qr = uses_qr(columns);
    job.thin.p_count = side * columns + job.pieces.size();
    job.thin.q_count = side * columns;
    job.thin.find_memory(job.site);
    job.p.data = job.thin.p.get();
    job.q.data = job.thin.q.get();
    take(job.flags, job.flag_count() * sizeof(std::uint32_t));
    job.p.bad = job.q.bad = job.flag(0);
    job.p.workspace = job.q.workspace =
        reinterpret_cast<double*>(take(job.workspace, 2 * columns * sizeof(double)));
    take(job.parts, job.site.part_elements(job.matrix(nullptr, 0, side, side)) * item);
    if (!job.errors || absent == job.pieces.size())
        job.fed = nullptr;
    else
        job.fed = absent == 0 ? job.errors.get() : take(job.fed_errors, job.count * item);
    job.q.owner = static_cast<std::uint32_t>(bucket.index);
    job.q.kept = last_q(bucket.index, side, columns, job.site);
}

// A row of P says that something in a row of M is not finite, but not in which parameter. That
// parameter's gradient is left out, and all ranks are told. Its error takes part: nothing of the
// result reaches it, on any rank.
void BatchedPowerSgdHook::project(const Job& job) {
    const powersgd::Site& site = job.site;
    site.follow_home();
    site.transfer(job.gaps, site.dtype());
    site.transfer({{job.flags.get(), nullptr, job.flag_count()}}, DDP_I32);
    site.transfer({{job.p.data, nullptr, job.thin.p_count}}, site.compute());
    job.copy_fed_errors();
    begin(site, {job.q}, job.rules);
    std::vector<ddp_low_rank> rows = job.rows();
    site.low_rank(DDP_LOW_RANK_PROJECT, rows);
    site.thin(DDP_THIN_CHECK, {job.p});
    std::vector<ddp_doubt> doubts;
    for (std::size_t i = 0; i < job.pieces.size(); ++i)
        doubts.push_back({job.gradients + job.pieces[i].begin * job.gradient_size(),
                          job.pieces[i].count, job.mark(i)});
    site.leave_out(doubts, job.flag(0));
    for (ddp_low_rank& m : rows) m.only_if = job.flag(0);
    site.low_rank(DDP_LOW_RANK_PROJECT, rows);
}

// From here on all ranks know the same parameters that are left out.
void BatchedPowerSgdHook::project_back(const Job& job) {
    const DefaultArithmeticScope arithmetic;
    const powersgd::Site& site = job.site;
    site.transfer({{job.flags.get(), nullptr, 1}}, DDP_I32);
    std::vector<ddp_thin> checks{job.p};
    for (std::size_t i = 0; i < job.pieces.size(); ++i) {
        ddp_thin mark{};
        mark.data = job.mark(i);
        mark.rows = mark.columns = 1;
        mark.bad = job.flag(1 + i);
        checks.push_back(mark);
    }
    site.thin(DDP_THIN_CHECK, checks);
    site.thin(DDP_THIN_ORTHOGONALIZE, {job.p}, job.rules);
    site.transfer({{job.thin.own_q.get(), nullptr, job.thin.q_count}}, site.compute());
    // One after the other: both add to all of Q.
    for (const ddp_low_rank& m : job.rows()) site.low_rank(DDP_LOW_RANK_PROJECT_BACK, {m});
}

// Gaps, which belong to nobody, stay zero.
void BatchedPowerSgdHook::restore(const Job& job) {
    const DefaultArithmeticScope arithmetic;
    job.site.thin(DDP_THIN_CHECK, {job.q});
    std::vector<ddp_low_rank> parts;
    for (std::size_t i = 0; i < job.pieces.size(); ++i) {
        std::byte* const error = job.pieces[i].absent ? nullptr : job.errors.get();
        for (ddp_low_rank& m : job.matrices(error, job.pieces[i].begin, job.pieces[i].count)) {
            m.left_out[0] = job.flag(0);
            m.left_out[1] = job.flag(1 + i);
            parts.push_back(m);
        }
    }
    job.site.low_rank(DDP_LOW_RANK_RESTORE, parts);
    if (job.keeps_q) job.site.thin(DDP_THIN_KEEP, {job.q});
}

}  // namespace libddp
