// A built-in hook's name and options as text: a line, and the rest.
#include "fuzz/target.h"
#include "hooks/builtin.h"
#include "rendezvous/store.h"

namespace fuzz::hook_options {
namespace {

using namespace libddp;

std::shared_ptr<Group> lone_group() {
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.rank = 0;
    options.world_size = 1;
    ddp_group* group = nullptr;
    check(ddp_group_create(&options, &group, nullptr) == DDP_OK, "there is no group of one rank");
    const auto impl = group->impl;
    ddp_group_free(group);
    return impl;
}

}  // namespace

DDP_FUZZ_TARGET(hook_options, input) {
    static const std::shared_ptr<Group> group = lone_group();
    Reader bytes(input);
    const std::string name(bytes.until('\n')), options(bytes.rest());
    HookPtr hook;
    if (!accepts([&] { hook = make_hook(name, options, group); })) return;
    check(!hook->name().empty(), "a hook has no name");
    // Its own options are for ranks to compare. Some hooks can be made of them.
    HookPtr again;
    if (!accepts([&] { again = make_hook(hook->name(), hook->options(), group); })) return;
    check(again->name() == hook->name() && again->options() == hook->options(),
          "a hook's own options make another");
}

}  // namespace fuzz::hook_options
