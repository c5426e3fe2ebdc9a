#include "comm/group.h"

#include "comm/verdict.h"
#include "util/interrupt.h"

namespace libddp {

void Group::submit_and_wait(const Collective& collective, const OpTag& tag) {
    const auto work = submit(collective, tag);
    work->wait(std::nullopt);
    if (!work->result().ok()) throw Error(work->result());
}

void Group::check_in_wait(const char* waited_for) {
    check();
    if (interrupt::wanted()) throw Error(break_everywhere(interruption(rank(), waited_for)));
}

}  // namespace libddp
