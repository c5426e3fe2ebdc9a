// The program of tests/bench/performance/elastic.py. A store or one rank, whose state is a model's
// parameters and as much momentum:
//
//     bench_elastic store                             prints its address, and ends with its standard input
//     bench_elastic train STORE BACKEND MODEL WORLD   trains until it is killed; at most WORLD ranks. A line for each roster
//     bench_elastic cost STORE BACKEND MODEL WORLD RANK PAIRS
//                                                     so many steps on a plain group and in an
//                                                     elastic job, in turns
#include <cstdio>
#include <cstdlib>
#include <ddp/ddp.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "groups.h"
#include "handles.h"
#include "measure.h"
#include "models.h"
#include "statistics.h"

namespace {

// Values of the state: those of the job, and what a rank that comes has until it gets them.
constexpr float kOfTheJob = 1, kOfAJoiner = 2;

// The parameters of a model, whose gradients live in the buckets, and momentum.
class Trainer {
public:
    Trainer(ddp_group* group, const bench::Model& model) : context_(group) {
        for (const bench::Parameter& parameter : model) {
            const auto count = static_cast<std::size_t>(parameter.count());
            values_.emplace_back(count, kOfAJoiner);
            momenta_.emplace_back(count, kOfAJoiner);
            context_.add_param(parameter.name, parameter.shape, values_.back().data());
        }
        context_.commit();
    }

    void add_to(ddp::Elastic& job) {
        job.add_context(context_);
        for (std::size_t i = 0; i < momenta_.size(); ++i)
            job.add_state("momentum" + std::to_string(i), momenta_[i].data(),
                          momenta_[i].size() * sizeof(float));
    }

    void fill(float value) {
        for (auto* state : {&values_, &momenta_})
            for (std::vector<float>& each : *state) std::fill(each.begin(), each.end(), value);
    }
    bool holds(float value) const {
        for (const auto* state : {&values_, &momenta_})
            for (const std::vector<float>& each : *state)
                for (const float element : each)
                    if (element != value) return false;
        return true;
    }

    // Writes the gradients in the order of a backward pass, without compute.
    void step() {
        context_.step_begin();
        follow_views();
        for (std::size_t i = views_.size(); i-- > 0;) {
            std::fill_n(views_[i], values_[i].size(), 1.0F);
            context_.grad_ready(static_cast<ddp_param>(i));
        }
        context_.finalize();
    }

private:
    void follow_views() {
        const std::int64_t generation = ddp_layout_generation(context_.get());
        if (generation == generation_) return;
        generation_ = generation;
        views_.clear();
        for (std::size_t i = 0; i < values_.size(); ++i) {
            void* view = nullptr;
            ddp::detail::call(ddp_grad_view, context_.get(), static_cast<ddp_param>(i), &view);
            views_.push_back(static_cast<float*>(view));
        }
    }

    ddp::Context context_;
    std::vector<std::vector<float>> values_, momenta_;
    std::vector<float*> views_;
    std::int64_t generation_ = -1;
};

bench::Store connect(const char* uri, bool serves = false) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = uri;
    options.is_server = serves ? 1 : 0;
    ddp_store* store = nullptr;
    ddp::detail::call(ddp_store_create, &options, &store);
    return bench::Store(store);
}

ddp_group_options group_options(ddp_store* store, const char* backend) {
    ddp_group_options options = ddp::Group::defaults();
    options.store = store;
    options.backend = backend;
    options.timeout_ms = 60'000;
    return options;
}

ddp::Elastic join(ddp_store* store, const char* backend, std::int32_t world) {
    const ddp_group_options group = group_options(store, backend);
    ddp_elastic_options options = ddp::Elastic::defaults();
    options.group = &group;
    options.max_world = world;
    return ddp::Elastic(options);
}

void serve() {
    const bench::Store store = connect("tcp://127.0.0.1:0", true);
    std::printf("tcp://127.0.0.1:%d\n", static_cast<int>(ddp_store_port(store.get())));
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
}

// begin_ms: of the ddp_elastic_begin from which the roster comes. at_ms: when that returned, on the
// clock of all processes of this host. step_ms: the first step of the roster. usual_ms: the median
// of the steps of this rank so far.
void train(const char* address, const char* backend, const char* model, std::int32_t world) {
    const bench::Store store = connect(address);
    ddp::Elastic job = join(store.get(), backend, world);
    Trainer trainer(job.group(), bench::find_model(model));
    trainer.add_to(job);
    std::vector<double> usual;
    for (;;) {
        const double start = bench::now_ms();
        const ddp_elastic_step now = job.begin();
        const double begun = bench::now_ms();
        if (now.roster == 1 && now.changed) trainer.fill(kOfTheJob);
        const double before = bench::now_ms();
        try {
            trainer.step();
        } catch (const ddp::Error&) {
            continue;
        }
        const double step = bench::now_ms() - before;
        if (now.changed) {
            std::printf(
                "{\"roster\": %lld, \"world\": %d, \"begin_ms\": %.3f, \"at_ms\": %.3f, "
                "\"step_ms\": %.3f, \"usual_ms\": %.3f}\n",
                static_cast<long long>(now.roster), now.world_size, begun - start, begun, step,
                usual.empty() ? 0.0 : bench::median(usual));
            std::fflush(stdout);
            if (!trainer.holds(kOfTheJob))
                throw std::runtime_error("a rank has not got the state of the job");
        } else {
            usual.push_back(step);
        }
        job.commit();
    }
}

void compare(const char* address, const char* backend, const char* model_name, std::int32_t world,
             std::int32_t rank, int pairs) {
    const bench::Model model = bench::find_model(model_name);
    const bench::Store store = connect(address);
    ddp_group_options options = group_options(store.get(), backend);
    options.rank = rank;
    options.world_size = world;
    options.group_name = "plain";
    const ddp::Group group(options);
    Trainer plain(group.get(), model);
    ddp::Elastic job = join(store.get(), backend, world);
    Trainer elastic(job.group(), model);
    elastic.add_to(job);

    std::vector<double> on_group, in_job, calls;
    const auto plain_step = [&] {
        const double start = bench::now_ms();
        plain.step();
        on_group.push_back(bench::now_ms() - start);
    };
    const auto elastic_step = [&] {
        const double start = bench::now_ms();
        job.begin();
        const double begun = bench::now_ms();
        elastic.step();
        const double stepped = bench::now_ms();
        job.commit();
        const double end = bench::now_ms();
        in_job.push_back(end - start);
        calls.push_back(begun - start + end - stepped);
    };
    for (int pair = 0; pair < bench::kWarmUp + pairs; ++pair) {
        pair % 2 == 0 ? plain_step() : elastic_step();
        pair % 2 == 0 ? elastic_step() : plain_step();
    }
    const bench::Ranks ranks = bench::ranks_of(group.get());
    for (std::vector<double>* series : {&on_group, &in_job, &calls}) {
        *series = bench::counted(*series);
        ranks.maximum_of(*series);
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < on_group.size(); ++i) ratios.push_back(in_job[i] / on_group[i]);
    if (rank == 0)
        std::printf(
            "{\"plain_ms\": %.4f, \"elastic_ms\": %.4f, \"ratio\": %.5f, \"calls_us\": %.3f}\n",
            bench::median(on_group), bench::median(in_job), bench::median(ratios),
            1e3 * bench::median(calls));
    ranks.barrier();
}

void run(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "store" && argc == 2) return serve();
    if (what == "train" && argc == 6) return train(argv[2], argv[3], argv[4], std::atoi(argv[5]));
    if (what == "cost" && argc == 8)
        return compare(argv[2], argv[3], argv[4], std::atoi(argv[5]), std::atoi(argv[6]),
                       std::atoi(argv[7]));
    throw std::runtime_error("elastic.cc says how this is called");
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_elastic: %s\n", error.what());
        return 1;
    }
    return 0;
}
