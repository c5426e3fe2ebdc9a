// Memory of a rank for its message: the backend's, or any.
#pragma once

#include <cstring>

#include "unit/backend/fake_host.h"
#include "unit/backend/numbers.h"

namespace libddp::testing_backend {

// A message of a rank.
class Message {
public:
    Message(Rank& rank, bool allocated, const Bytes& content) : rank_(rank), size_(content.size()) {
        if (allocated && rank.world() > 1)
            data_ = allocated_ = static_cast<char*>(rank.allocate(size_));
        else
            data_ = (own_ = content).data();
        std::memcpy(data_, content.data(), size_);
    }
    ~Message() {
        if (allocated_) rank_.deallocate(allocated_);
    }
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;
    char* data() { return data_; }
    Bytes bytes() const { return {data_, data_ + size_}; }

private:
    Rank& rank_;
    const std::size_t size_;
    Bytes own_;
    char* allocated_ = nullptr;
    char* data_ = nullptr;
};

}  // namespace libddp::testing_backend
