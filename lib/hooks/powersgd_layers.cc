#include <vector>

#include "device/scratch.h"
#include "hooks/plain.h"
#include "hooks/powersgd.h"
#include "kernels/default_arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

// Elements between the beginnings of two thin matrices: a multiple of 16 bytes.
std::size_t padded(std::size_t elements) {
    return (elements + 3) / 4 * 4;
}

}  // namespace

struct LayeredPowerSgdHook::Job {
    powersgd::Site site;
    ddp_thin_rules rules{};
    bool keeps_q = true;
    // One entry for each parameter that is compressed.
    std::vector<ddp_low_rank> layers;
    std::vector<ddp_thin> ps, qs;
    PlainPart plain;
    powersgd::ThinMatrices thin;
    ScratchMemory parts, flags, workspace;

    void clear(const ddp_bucket& bucket) {
        site = powersgd::Site(bucket);
        layers.clear();
        ps.clear();
        qs.clear();
        plain.clear();
        thin.p_count = thin.q_count = 0;
    }
    // After all are laid out, because memory moves when it grows.
    void find_memory() {
        const std::size_t item = dtype_size(site.compute());
        std::size_t columns = 0, part_count = 0;
        for (const ddp_low_rank& layer : layers) {
            columns += layer.rank;
            part_count += site.part_elements(layer);
        }
        thin.find_memory(site);
        std::byte *p = thin.p.get(), *q = thin.q.get(), *own_q = thin.own_q.get();
        std::byte* part = parts.require(part_count * item, site.stream());
        auto* work = reinterpret_cast<double*>(
            workspace.require(2 * columns * sizeof(double), site.stream()));
        auto* flag = reinterpret_cast<std::uint32_t*>(
            flags.require(layers.size() * sizeof(std::uint32_t), site.stream()));
        for (std::size_t i = 0; i < layers.size(); ++i, ++flag) {
            ddp_low_rank& layer = layers[i];
            layer.p = ps[i].data = p;
            layer.q = qs[i].data = q;
            layer.own_q = own_q;
            layer.parts = part;
            layer.left_out[0] = ps[i].bad = qs[i].bad = flag;
            ps[i].workspace = qs[i].workspace = work;
            p += padded(layer.rows * layer.rank) * item;
            q += padded(layer.columns * layer.rank) * item;
            own_q += padded(layer.columns * layer.rank) * item;
            part += site.part_elements(layer) * item;
            work += 2 * layer.rank;
        }
    }
};

void LayeredPowerSgdHook::set_buckets(const Buckets& buckets) {
    jobs_.clear();
    PowerSgdHook::set_buckets(buckets);
}

// The order is the same on all ranks: what is not compressed, the sum of all P, the sum of all Q.
WorkPtr LayeredPowerSgdHook::compress(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    auto job = jobs_.take(bucket.index);
    lay_out(bucket, *job);
    if (job->layers.empty()) return AllreduceHook().reduce(group, bucket, tag);
    job->plain.submit(*group.impl, bucket, job, tag);
    project(*job);
    return exchange(*group.impl, job, bucket.op(), tag, project_back, restore);
}

void LayeredPowerSgdHook::lay_out(const ddp_bucket& bucket, Job& job) {
    job.clear(bucket);
    job.rules = rules();
    job.keeps_q = starts_warm();
    std::size_t before = 0, after = 0;
    for (const BucketTensor& tensor : bucket.tensors) {
        const auto count = static_cast<std::size_t>(tensor.count);
        const std::size_t n =
            tensor.ndim >= 2 && count > 0 ? static_cast<std::size_t>(tensor.shape[0]) : 0;
        const std::size_t m = n > 0 ? count / n : 0, columns = columns_for(n, m);
        before += count;
        after += columns > 0 ? (n + m) * columns : count;
        if (columns == 0) {
            job.plain.add(tensor.gradient, count * dtype_size(bucket.dtype));
            continue;
        }
        // An absent gradient sends nothing of its error: perhaps nobody takes the result.
        const bool has_error = feeds_back() && !tensor.absent;
        ddp_low_rank layer{};
        layer.gradient = tensor.gradient;
        if (has_error) layer.error = state().error(tensor.param, count, job.site).memory.get();
        layer.rows = layer.p_stride = n;
        layer.columns = layer.q_stride = m;
        layer.rank = columns;
        ddp_thin thin{};
        thin.columns = columns;
        thin.owner = static_cast<std::uint32_t>(tensor.param);
        thin.qr = uses_qr(columns);
        thin.rows = n;
        job.ps.push_back(thin);
        thin.rows = m;
        thin.kept = last_q(tensor.param, m, columns, job.site);
        job.qs.push_back(thin);
        job.layers.push_back(layer);
        job.thin.p_count += padded(n * columns);
        job.thin.q_count += padded(m * columns);
    }
    job.find_memory();
    count_elements(before, after);
}

void LayeredPowerSgdHook::project(const Job& job) {
    job.site.follow_home();
    job.site.transfer({{job.flags.get(), nullptr, job.layers.size()}}, DDP_I32);
    begin(job.site, job.qs, job.rules);
    job.site.low_rank(DDP_LOW_RANK_PROJECT, job.layers);
}

// P now has the same bits on every rank, and so every rank comes to the same decisions. All that
// a rank sent before P has arrived too.
void LayeredPowerSgdHook::project_back(const Job& job) {
    const DefaultArithmeticScope arithmetic;
    job.plain.give_back();
    job.site.thin(DDP_THIN_CHECK, job.ps);
    job.site.thin(DDP_THIN_ORTHOGONALIZE, job.ps, job.rules);
    job.site.transfer({{job.thin.own_q.get(), nullptr, job.thin.q_count}}, job.site.compute());
    job.site.low_rank(DDP_LOW_RANK_PROJECT_BACK, job.layers);
}

// A rank whose own gradient was finite could not tell from its error that another's was not:
// nothing has been changed up to here, and nothing is for such a parameter. Without a warm start
// nothing is ever kept, and so every Q is drawn. A gradient of zeros, which nobody had perhaps,
// says nothing about the next one.
void LayeredPowerSgdHook::restore(const Job& job) {
    const DefaultArithmeticScope arithmetic;
    job.site.thin(DDP_THIN_CHECK, job.qs);
    job.site.low_rank(DDP_LOW_RANK_RESTORE, job.layers);
    if (job.keeps_q) job.site.thin(DDP_THIN_KEEP, job.qs);
}

}  // namespace libddp
