// The same as `ddp-bench allreduce`, through Gloo alone: one rank of it, f32 in place. For each
// size it prints a row for each of Gloo's own algorithms; the caller takes the best. processes.py
// starts the ranks.
//
// "busy" is Gloo's synchronous mode, in which the calling thread polls the sockets itself. Only its
// older algorithms, which are bound to their memory, have it, and only for sizes that fit into the
// sockets' buffers: beyond that two ranks that send to each other wait forever.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "measure.h"
#include "report.h"
#include "util/text.h"
#include "write_text.h"

namespace {

constexpr std::size_t kLargestBusy = 64 << 10;

using Context = std::shared_ptr<gloo::Context>;

struct Options {
    std::vector<std::uint64_t> bytes;
    std::int64_t iterations = 0;
    double seconds = 1.5;
    double timeout = 900;
};

Options parse(int argc, char** argv) {
    Options options;
    CLI::App app("One rank of Gloo's own allreduce");
    app.add_option("--bytes", options.bytes, "Sizes, separated by commas")
        ->delimiter(',')
        ->required();
    app.add_option("--iters", options.iterations, "0: as many as fit into --seconds, at least 10");
    app.add_option("--seconds", options.seconds, "Of measuring each algorithm");
    app.add_option("--timeout", options.timeout, "Of each collective");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error) == 0 ? 0 : 2);
    }
    return options;
}

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr)
        throw std::runtime_error(std::string(name) +
                                 " is not set: processes.py starts this program");
    return value;
}

// Newer versions of Gloo take the store by shared_ptr.
template <typename Rendezvous>
void connect_full_mesh(Rendezvous& context, const std::shared_ptr<gloo::rendezvous::Store>& store,
                       std::shared_ptr<gloo::transport::Device>& device) {
    if constexpr (requires { context.connectFullMesh(store, device); })
        context.connectFullMesh(store, device);
    else
        context.connectFullMesh(*store, device);
}

// Contexts of all ranks, each with connections of its own.
class Connector {
public:
    explicit Connector(const Options& options)
        : rank_(std::stoi(variable("RANK"))),
          world_(std::stoi(variable("WORLD_SIZE"))),
          timeout_(static_cast<std::int64_t>(1e3 * options.timeout)),
          folder_(variable("DDP_PEER_FOLDER")) {
        gloo::transport::tcp::attr attributes;
        attributes.iface = variable("GLOO_SOCKET_IFNAME");
        device_ = gloo::transport::tcp::CreateDevice(attributes);
    }

    Context connect(const std::string& name) {
        auto context = std::make_shared<gloo::rendezvous::Context>(rank_, world_);
        context->setTimeout(timeout_);
        const std::string folder = folder_ + "/" + name;
        std::filesystem::create_directories(folder);
        connect_full_mesh(*context, std::make_shared<gloo::rendezvous::FileStore>(folder), device_);
        return context;
    }

    Context connect_busy(const std::string& name) {
        const Context context = connect(name);
        for (int peer = 0; peer < world_; ++peer) {
            if (peer != rank_) context->getPair(peer)->setSync(true, true);
        }
        return context;
    }

    int rank() const { return rank_; }
    int world() const { return world_; }

private:
    int rank_;
    int world_;
    std::chrono::milliseconds timeout_;
    std::string folder_;  // seen by all ranks
    std::shared_ptr<gloo::transport::Device> device_;
};

using Function = void (*)(void*, const void*, const void*, std::size_t);

constexpr Function kSum = gloo::sum<float>;
constexpr Function kMaximum = gloo::max<double>;

bench::Ranks ranks_of(const Context& context) {
    const auto barrier = [context] {
        gloo::BarrierOptions options(context);
        gloo::barrier(options);
    };
    const auto broadcast = [context](std::int64_t& value) {
        gloo::BroadcastOptions options(context);
        options.setRoot(0);
        options.setOutput(&value, 1);
        gloo::broadcast(options);
    };
    const auto maximum_of = [context](std::vector<double>& values) {
        gloo::AllreduceOptions options(context);
        options.setOutput(values.data(), values.size());
        options.setReduceFunction(kMaximum);
        gloo::allreduce(options);
    };
    return {barrier, broadcast, maximum_of};
}

// An algorithm and the loop that is timed.
struct Competitor {
    std::string name;
    std::function<void()> reduce;
};

std::function<void()> operation(const Context& context, gloo::AllreduceOptions::Algorithm algorithm,
                                std::vector<float>& data) {
    return [context, algorithm, &data] {
        gloo::AllreduceOptions options(context);
        options.setAlgorithm(algorithm);
        options.setOutput(data.data(), data.size());
        options.setReduceFunction(kSum);
        gloo::allreduce(options);
    };
}

template <template <typename> class Algorithm>
std::function<void()> bound(const Context& context, std::vector<float>& data) {
    const auto algorithm = std::make_shared<Algorithm<float>>(
        context, std::vector<float*>{data.data()}, static_cast<int>(data.size()));
    return [algorithm] { algorithm->run(); };
}

std::vector<Competitor> competitors(Connector& connector, const std::string& size,
                                    std::vector<float>& data) {
    using gloo::AllreduceOptions;
    const auto context = [&](const std::string& name) { return connector.connect(size + name); };
    const auto busy = [&](const std::string& name) { return connector.connect_busy(size + name); };
    std::vector<Competitor> all{
        {"ring", operation(context("ring"), AllreduceOptions::Algorithm::RING, data)},
        {"bcube", operation(context("bcube"), AllreduceOptions::Algorithm::BCUBE, data)},
        {"ring_chunked", bound<gloo::AllreduceRingChunked>(context("chunked"), data)},
        {"halving_doubling", bound<gloo::AllreduceHalvingDoubling>(context("halving"), data)},
    };
    if (data.size() * sizeof(float) <= kLargestBusy) {
        all.push_back(
            {"ring_chunked, busy", bound<gloo::AllreduceRingChunked>(busy("chunked_busy"), data)});
        all.push_back({"halving_doubling, busy",
                       bound<gloo::AllreduceHalvingDoubling>(busy("halving_busy"), data)});
    }
    return all;
}

// Ones become the world size on every rank; then zeros, which stay zeros.
void check(const Competitor& competitor, std::vector<float>& data, int world) {
    std::fill(data.begin(), data.end(), 1.0f);
    competitor.reduce();
    for (const float sum : data) {
        if (sum != static_cast<float>(world))
            throw std::runtime_error(competitor.name + " gave a wrong sum");
    }
    std::fill(data.begin(), data.end(), 0.0f);
}

std::vector<bench::Row> measure_size(Connector& connector, const bench::Ranks& ranks,
                                     const Options& options, std::uint64_t bytes) {
    std::vector<float> data(std::max<std::size_t>(1, bytes / sizeof(float)));
    const std::vector<Competitor> all = competitors(connector, std::to_string(bytes), data);
    std::vector<bench::Iteration> loops;
    for (const Competitor& competitor : all) {
        // in synchronous mode a thread that is early would keep its core from the others
        ranks.barrier();
        check(competitor, data, connector.world());
        loops.push_back([&competitor] {
            const double start = bench::now_ms();
            competitor.reduce();
            return bench::now_ms() - start;
        });
    }
    const double seconds = options.seconds * static_cast<double>(all.size());
    const auto series = bench::measure(ranks, {options.iterations, seconds}, loops);
    std::vector<bench::Row> rows;
    for (std::size_t i = 0; i < all.size(); ++i) {
        rows.push_back(bench::make_row("gloo-allreduce", connector.world(), "gloo",
                                       static_cast<std::int64_t>(data.size() * sizeof(float)),
                                       series[i]));
        rows.back()["dtype"] = "f32";
        rows.back()["setting"] = all[i].name;
    }
    return rows;
}

void run(const Options& options) {
    Connector connector(options);
    const bench::Ranks ranks = ranks_of(connector.connect("control"));
    for (const std::uint64_t bytes : options.bytes) {
        const std::vector<bench::Row> rows = measure_size(connector, ranks, options, bytes);
        libddp::TextOut text;
        if (connector.rank() == 0) bench::print_json(text, rows);
        libddp::write_output(text.str());
    }
    ranks.barrier();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(parse(argc, argv));
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "gloo_allreduce: " << error.what() << '\n';
        return 1;
    }
}
