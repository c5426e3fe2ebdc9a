#include "util/at_exit.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "util/interrupt.h"
#include "util/log.h"
#include "util/mutex.h"
#include "util/process.h"

namespace libddp {

struct ExitList {
    Mutex mutex;
    std::vector<const AtExit*> entries DDP_GUARDED_BY(mutex);
    std::atomic<bool> registered{false}, begun{false};
    const Origin origin;

    // Never destroyed: other threads may still use it while static objects are torn down.
    static ExitList& get() {
        static OnePerProcess<ExitList> lists;
        ExitList& list = lists.get();
        if (!list.registered.exchange(true)) {
            stay_loaded();
            // Not atexit: that does not tell the status.
            on_exit(&run, &list);
        }
        return list;
    }

    static void run(int status, void* self) {
        auto& list = *static_cast<ExitList*>(self);
        if (list.origin.inherited()) return;
        list.begun = true;
        const interrupt::Off off;  // what the program's check uses may have ended
        const auto begin = Deadline::Clock::now();
        const Lock lock(list.mutex);
        for (const AtExit* entry : list.entries) {
            const auto gone =
                std::chrono::ceil<std::chrono::milliseconds>(Deadline::Clock::now() - begin);
            const auto deadline = Deadline::after_ms(entry->at_most_ms_ - gone.count());
            if (deadline.expired()) continue;
            try {
                entry->say_(status, deadline);
            } catch (const std::exception& error) {
                log(LogLevel::kDebug, "at exit: ", error.what());
            }
        }
    }
};

AtExit::AtExit(Say say, std::int64_t at_most_ms) : say_(std::move(say)), at_most_ms_(at_most_ms) {
    auto& list = ExitList::get();
    const Lock lock(list.mutex);
    list.entries.push_back(this);
}

void AtExit::prepare() {
    ExitList::get();
}

bool AtExit::exiting() {
    return ExitList::get().begun;
}

AtExit::~AtExit() {
    auto& list = ExitList::get();
    const Lock lock(list.mutex);
    list.entries.erase(std::find(list.entries.begin(), list.entries.end(), this));
}

}  // namespace libddp
