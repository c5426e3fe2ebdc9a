// The ddp_store of the C ABI.
#pragma once

#include <memory>

#include "rendezvous/store.h"

struct ddp_store {
    std::shared_ptr<libddp::Store> impl;
    bool owned = false;  // made by ddp_store_create; otherwise a group's
};
