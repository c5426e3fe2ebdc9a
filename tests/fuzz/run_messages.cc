// Messages of the launchers of other nodes, and node 0's order after them. The first byte says
// which message the input is.
#include "fuzz/target.h"
#include "run/nodes.h"

namespace fuzz::run_messages {
namespace {

using namespace ddprun;

void read_order(const std::string& text) {
    const auto order = decode_order(text);
    if (!order) return;
    check(order->generation >= 0, "an order is of no generation");
    const auto again = decode_order(encode_order(*order, 7));
    check(again && again->generation == order->generation && again->kind == order->kind &&
              again->code == order->code && again->may_restart == order->may_restart &&
              again->weight == order->weight && again->text == order->text,
          "an order changes when it is written and read");
}

void read_reports(Reader& bytes, int max_restarts) {
    std::vector<std::optional<Report>> reports;
    while (!bytes.empty()) {
        reports.push_back(decode_report(std::string(bytes.piece())));
        if (!reports.back()) continue;
        check(decode_report(encode_report(*reports.back(), 7)) == reports.back(),
              "a report changes when it is written and read");
    }
    Order order;
    for (int turn = 0; turn < 4; ++turn) {
        const Order next = next_order(order, reports, max_restarts);
        check(next.generation == order.generation || next.generation == order.generation + 1,
              "a generation is left out");
        check(next.generation <= max_restarts, "a job is restarted too often");
        check(order.kind != Order::Kind::kEnd || next.kind == Order::Kind::kEnd,
              "a job goes on after its end");
        order = next;
    }
}

}  // namespace

DDP_FUZZ_TARGET(run_messages, input) {
    Reader bytes(input);
    const std::uint8_t what = bytes.byte();
    if (what >= 128)
        read_order(std::string(bytes.rest()));
    else
        read_reports(bytes, what % 4);
}

}  // namespace fuzz::run_messages
