#include "nodes.h"

#include <signal.h>

#include <algorithm>
#include <stdexcept>

#include "util/text.h"

namespace ddprun {
namespace {

constexpr Milliseconds kPeriod{250};
// Nodes that are started together come within this time.
constexpr Milliseconds kComeTime{5000};
// A node that lives has given a sign of life within this time.
constexpr Milliseconds kLately = 8 * kPeriod;

constexpr const char* kShapeKey = "ddp/run/shape";
constexpr const char* kRefusedKey = "ddp/run/refused";
constexpr const char* kOrderKey = "ddp/run/order";

std::string report_key(int node) {
    return "ddp/run/node/" + std::to_string(node);
}
std::string hello_key(int node) {
    return "ddp/run/hello/" + std::to_string(node);
}
std::string node_name(int node) {
    return "node " + std::to_string(node);
}

// "generation kind code may_restart weight beat", a newline, the text.
template <class Message>
std::string encode(const Message& message, int kind, std::int64_t beat) {
    libddp::TextOut out;
    out << message.generation << ' ' << kind << ' ' << message.code << ' ' << message.may_restart
        << ' ' << static_cast<int>(message.weight) << ' ' << beat << '\n'
        << message.text;
    return out.str();
}

// Puts what was encoded into `message` and returns its kind, from 0 to last_kind. Empty if the text
// is malformed.
template <class Message>
std::optional<int> decode(const std::string& encoded, int last_kind, Message& message) {
    libddp::TextIn in(encoded);
    int kind = 0;
    int weight = 0;
    std::int64_t beat = 0;
    in >> message.generation >> kind >> message.code >> message.may_restart >> weight >> beat;
    if (!in || in.get() != '\n' || message.generation < 0) return std::nullopt;
    if (kind < 0 || kind > last_kind || weight < 0 || weight > static_cast<int>(Weight::kLauncher))
        return std::nullopt;
    message.weight = static_cast<Weight>(weight);
    message.text.assign(std::istreambuf_iterator<char>(in), {});
    return kind;
}

bool has_ended(const Report& report) {
    return report.state != Report::State::kRunning && report.state != Report::State::kFailed;
}

std::string shape_text(const Nodes::Shape& shape) {
    return "--nnodes " + std::to_string(shape.nodes) + " -n " + std::to_string(shape.local_ranks);
}

}  // namespace

std::string encode_report(const Report& report, std::int64_t beat) {
    return encode(report, static_cast<int>(report.state), beat);
}

std::optional<Report> decode_report(const std::string& encoded) {
    Report report;
    const auto state = decode(encoded, static_cast<int>(Report::State::kLeft), report);
    if (!state) return std::nullopt;
    report.state = static_cast<Report::State>(*state);
    return report;
}

std::string encode_order(const Order& order, std::int64_t beat) {
    return encode(order, static_cast<int>(order.kind), beat);
}

std::optional<Order> decode_order(const std::string& encoded) {
    Order order;
    const auto kind = decode(encoded, static_cast<int>(Order::Kind::kEnd), order);
    if (!kind) return std::nullopt;
    order.kind = static_cast<Order::Kind>(*kind);
    return order;
}

Order next_order(const Order& current, const std::vector<std::optional<Report>>& reports,
                 int max_restarts) {
    Order next = current;
    bool all_came = true;
    bool all_ended = true;
    for (const std::optional<Report>& report : reports) {
        if (!report) {
            all_came = false;
        } else if (report->generation != current.generation) {
            all_ended = false;
        } else {
            all_ended = all_ended && has_ended(*report);
            next.may_restart = next.may_restart && report->may_restart;
            // The weightiest failure, and of equal ones the first: a node may hear of what its own
            // ranks' peers caused before the node of the cause has.
            if (next.kind != Order::Kind::kEnd && report->code != 0 &&
                (next.kind == Order::Kind::kRun || report->weight > next.weight)) {
                next.kind = Order::Kind::kStop;
                next.code = report->code;
                next.text = report->text;
                next.weight = report->weight;
            }
        }
    }
    // A node that has not come yet has nothing to end, but without it the job is not complete.
    if (next.kind == Order::Kind::kRun && all_came && all_ended) next.kind = Order::Kind::kEnd;
    if (next.kind != Order::Kind::kStop || !all_ended) return next;
    if (next.may_restart && next.generation < max_restarts)
        return Order{next.generation + 1, Order::Kind::kRun, 0, true, "", Weight::kNone};
    next.kind = Order::Kind::kEnd;
    return next;
}

Nodes::Nodes(uv_loop_t* loop, Store& store, Shape shape)
    : loop_(loop),
      store_(store),
      shape_(shape),
      has_order_(leads()),
      peers_(static_cast<std::size_t>(leads() ? shape.nodes : 0)),
      timer_(loop, [this] { begin_exchange(); }) {
    say_hello();
    timer_.start(kPeriod);
}

Nodes::~Nodes() {
    timer_.stop();
    while (busy_) uv_run(loop_, UV_RUN_ONCE);
}

void Nodes::say_hello() {
    const std::string shape = shape_text(shape_);
    if (leads()) {
        store_.set(kShapeKey, shape);
    } else if (const std::string expected = store_.await(kShapeKey); expected != shape) {
        refuse("this node was started with " + shape + ", but node 0 with " + expected +
               "; every node needs the same");
    }
    if (store_.add(hello_key(shape_.node_rank), 1) != 1) {
        throw std::runtime_error("--node-rank " + std::to_string(shape_.node_rank) +
                                 " is taken by another ddprun");
    }
}

// Node 0 would wait for this node otherwise.
void Nodes::refuse(const std::string& why) {
    store_.set(kRefusedKey, node_name(shape_.node_rank) + " takes no part: " + why);
    throw std::runtime_error(why);
}

void Nodes::report(Report report) {
    if (report == report_ && version_ > 0) return;
    report_ = std::move(report);
    ++version_;
    begin_exchange();
}

void Nodes::begin_exchange() {
    if (busy_) return;
    busy_ = true;
    ++beat_;
    exchange_.write = leads() ? encode_order(order_, beat_) : encode_report(report_, beat_);
    exchange_.version = version_;
    exchange_.work.data = this;
    // The first call starts the threads of the pool, which take this mask over. A signal is for the
    // main thread: where that does not take it any more, it would end the process through one of
    // them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    uv_queue_work(
        loop_, &exchange_.work,
        [](uv_work_t* work) {
            auto* nodes = static_cast<Nodes*>(work->data);
            nodes->run_exchange(nodes->exchange_);
        },
        [](uv_work_t* work, int) {
            auto* nodes = static_cast<Nodes*>(work->data);
            nodes->end_exchange(nodes->exchange_);
        });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// On a thread of the pool; touches nothing of Nodes that changes.
void Nodes::run_exchange(Exchange& exchange) {
    exchange.read.clear();
    exchange.came.clear();
    exchange.error.clear();
    exchange.lost = false;
    try {
        if (leads()) {
            store_.set(kOrderKey, exchange.write);
            for (int node = 0; node < shape_.nodes; ++node) {
                exchange.read.push_back(store_.get(report_key(node)));
                exchange.came.push_back(exchange.read.back() || store_.get(hello_key(node)));
            }
            const bool complete =
                std::find(exchange.came.begin(), exchange.came.end(), false) == exchange.came.end();
            exchange.refused = complete ? "" : store_.get(kRefusedKey).value_or("");
        } else {
            // Before its first report a node counts as not there yet.
            if (exchange.version > 0) store_.set(report_key(shape_.node_rank), exchange.write);
            exchange.read.push_back(store_.get(kOrderKey));
        }
    } catch (const StoreError& error) {
        exchange.error = error.what();
        exchange.lost = error.is_loss();
    } catch (const std::exception& error) {
        exchange.error = error.what();
    }
}

void Nodes::end_exchange(const Exchange& exchange) {
    busy_ = false;
    const auto now = Clock::now();
    if (!exchange.error.empty()) {
        if (exchange.lost || now - last_answer_ > shape_.lost_after)
            lost_ = "the store of node 0 does not answer: " + exchange.error;
        return;
    }
    last_answer_ = now;
    written_version_ = exchange.version;
    if (leads()) {
        take_reports(exchange);
        decide();
    } else if (exchange.read[0]) {
        const std::optional<Order> order = decode_order(*exchange.read[0]);
        if (!order) {
            lost_ =
                "node 0 writes orders that this ddprun cannot read; start the same version on "
                "every node";
            return;
        }
        order_ = *order;
        has_order_ = true;
    }
    if (version_ != written_version_) begin_exchange();
}

void Nodes::take_reports(const Exchange& exchange) {
    refused_ = exchange.refused;
    for (std::size_t node = 1; node < peers_.size(); ++node) {
        Peer& peer = peers_[node];
        if (exchange.came[node] && !peer.came) {
            peer.came = true;
            peer.last_change = Clock::now();
        }
        if (!exchange.read[node] || *exchange.read[node] == peer.last_text) continue;
        peer.last_text = *exchange.read[node];
        peer.last_change = Clock::now();
        const std::optional<Report> report = decode_report(peer.last_text);
        peer.unreadable = !report;
        if (report) peer.report = report;
    }
    // Its own it need not read.
    peers_[0].report = report_;
    peers_[0].last_change = Clock::now();
}

void Nodes::decide() {
    const auto now = Clock::now();
    std::vector<std::optional<Report>> reports;
    for (const Peer& peer : peers_) reports.push_back(peer.report);
    const Order before = order_;
    if (order_.kind != Order::Kind::kEnd) decided_ = now;
    order_ = next_order(order_, reports, shape_.max_restarts);
    for (int node = 1; node < shape_.nodes && order_.kind != Order::Kind::kEnd; ++node) {
        const Peer& peer = peers_[static_cast<std::size_t>(node)];
        if (peer.unreadable)
            give_up_on(node,
                       "writes reports that node 0 cannot read; start the same version of ddprun "
                       "on every node");
        if (peer.came && now - peer.last_change > shape_.lost_after)
            give_up_on(node, "does not answer any more");
        if (!peer.came && now - peer.last_change > shape_.join_time)
            give_up_on(node,
                       "has not come within " + std::to_string(shape_.join_time.count()) + " ms");
    }
    if (!refused_.empty() && order_.kind != Order::Kind::kEnd) give_up(refused_);
    if (before.kind != order_.kind || before.generation != order_.generation ||
        before.code != order_.code)
        ++version_;
}

void Nodes::give_up_on(int node, const std::string& what) {
    give_up(node_name(node) + " " + what);
}

void Nodes::give_up(const std::string& why) {
    if (order_.code == 0) order_.code = 1;
    order_.kind = Order::Kind::kEnd;
    order_.weight = Weight::kLauncher;
    order_.text = why;
}

bool Nodes::may_go(bool wait_for_absent) const {
    if (!lost_.empty()) return true;
    if (!leads()) return written_version_ == version_;
    return std::all_of(peers_.begin() + 1, peers_.end(), [&](const Peer& peer) {
        return peer.report ? peer.has_left() : !wait_for_absent;
    });
}

std::vector<int> Nodes::absent() const {
    std::vector<int> nodes;
    for (int node = 1; leads() && order_.kind == Order::Kind::kRun && node < shape_.nodes; ++node) {
        const Peer& peer = peers_[static_cast<std::size_t>(node)];
        if (!peer.came && Clock::now() - peer.last_change > kComeTime) nodes.push_back(node);
    }
    return nodes;
}

std::vector<int> Nodes::still_here() const {
    std::vector<int> nodes;
    for (int node = 1; node < shape_.nodes; ++node) {
        const Peer& peer = peers_[static_cast<std::size_t>(node)];
        const bool answered =
            peer.came && !peer.unreadable && decided_ - peer.last_change <= kLately;
        if (answered && !peer.has_left()) nodes.push_back(node);
    }
    return nodes;
}

}  // namespace ddprun
